"""Messages for later: one in a moment, one every minute, one that is cancelled.

python examples/later.py
"""

import fabric_client


def main() -> None:
    with fabric_client.connect() as fab:
        soon = fab.publish("reminders.due", {"order": 7}, delay=0.5, ttl=3600)
        fab.publish("metrics.collect", b"", every=60, name="collector")  # the next start replaces it by its name
        never = fab.publish("reminders.due", {"order": 8}, delay=3600)
        print(f"order 7 is due at {soon.due:%H:%M:%S}")

        fab.cancel(never.schedule)
        print("waiting:", sorted(schedule.topic for schedule in fab.schedules()))

        for message in fab.consume("reminders.*", group="reminding", count=1, timeout=10):
            with message:
                print(f"remind of order {message.data['order']}")


if __name__ == "__main__":
    main()
