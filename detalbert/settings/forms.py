"""The forms of files, as `data.form` names them."""

JSON_LINES = "json_lines"  # a row on each line
JSON = "json"  # a list of rows, a mapping with `data`, or rows one after another
TABLE = "table"  # CSV and its relatives
PARQUET = "parquet"
ARROW = "arrow"
XLSX = "xlsx"
ODS = "ods"
TEXT = "text"
ROW_FORMS = (JSON_LINES, JSON, TABLE, PARQUET, ARROW, XLSX, ODS)  # of questions
FORMS = (*ROW_FORMS, TEXT)
SHEETS = (XLSX, ODS)
WORKBOOKS = (".xlsx", ".ods")  # endings that are written
