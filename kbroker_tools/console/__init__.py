"""The conversion of lines to records and of records to lines."""
