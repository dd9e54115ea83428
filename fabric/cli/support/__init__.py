"""What commands share: values of options, tables, progress, connections."""
