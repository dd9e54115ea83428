"""Jobs: frequent questions about journals, ready to run.

`fabric spark run JOB --snapshot PATH`, or `spark-submit` with `python -m fabric_spark.jobs JOB …`, or in a notebook:

    job = find("topic-stats")
    tables = job.run(spark, settings_for(job, {"snapshot": path}))
"""

from fabric_spark.jobs.answer import Answer, ask
from fabric_spark.jobs.base import Chart, Job, Parameter, Settings, Tables, settings_for
from fabric_spark.jobs.registry import find, jobs

__all__ = ["Answer", "Chart", "Job", "Parameter", "Settings", "Tables", "ask", "find", "jobs", "settings_for"]
