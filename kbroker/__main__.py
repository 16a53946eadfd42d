"""`python -m kbroker`."""
from kbroker.daemon.main import main

main(prog_name='kbroker')
