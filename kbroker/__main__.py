"""`python -m kbroker`."""
from kbroker.main import main

main(prog_name='kbroker')
