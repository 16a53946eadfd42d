"""The conversion of lines of text to records, and of records to lines of text."""
