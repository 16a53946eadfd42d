"""The examples of the man pages: what each shows, and the lines that show it.

The tests run them in this order, one after the other: with a broker in the place of `localhost:9092` and its log
directory in the place of `/var/lib/kbroker`.
"""

Example = tuple[str, str]

EXAMPLES: dict[str, list[Example]] = {
    'kbroker-topics': [
        ('Create a topic, and describe it:',
         'kbroker-topics --bootstrap-server localhost:9092 --create --topic orders --partitions 2\n'
         'kbroker-topics --bootstrap-server localhost:9092 --describe --topic orders'),
        ('The topics of a log directory whose broker is down:',
         'kbroker-topics --data-dir /var/lib/kbroker --list'),
    ],
    'kbroker-produce': [
        ('Write lines with keys, in transactions of two lines:',
         "printf 'a:1\\nb:2\\na:3\\n' | kbroker-produce --bootstrap-server localhost:9092 --topic orders \\\n"
         '    --property parse.key=true --property key.separator=: --transactional-id loader --commit-every 2'),
    ],
    'kbroker-consume': [
        ('Read what is committed, as a member of a group:',
         'kbroker-consume --bootstrap-server localhost:9092 --topic orders --from-beginning --max-messages 3 \\\n'
         '    --group billing --isolation-level read_committed'),
        ('Read from a log directory:',
         'kbroker-consume --data-dir /var/lib/kbroker --topic orders --json'),
    ],
    'kbroker-groups': [
        ('How far behind a group is, in offsets and in records that it will get:',
         'kbroker-groups --bootstrap-server localhost:9092 --describe --group billing \\\n'
         '    --isolation-level read_committed'),
        ('Let it read the last hour again: see first, then do it:',
         'kbroker-groups --bootstrap-server localhost:9092 --reset-offsets --group billing --topic orders \\\n'
         '    --by-duration PT1H --dry-run\n'
         'kbroker-groups --bootstrap-server localhost:9092 --reset-offsets --group billing --topic orders \\\n'
         '    --by-duration PT1H --execute'),
    ],
    'kbroker-configs': [
        ('Keep a topic for a day, compacted, and see what is set:',
         'kbroker-configs --bootstrap-server localhost:9092 --alter --topic orders \\\n'
         "    --add-config 'retention.ms=86400000,cleanup.policy=[compact,delete]'\n"
         'kbroker-configs --bootstrap-server localhost:9092 --describe --topic orders'),
        ('Every setting of the broker and where it comes from, as JSON:',
         'kbroker-configs --bootstrap-server localhost:9092 --describe --broker 1 --all --json'),
    ],
    'kbroker-transactions': [
        ('What holds back the consumers of a topic, if anything does:',
         'kbroker-transactions --bootstrap-server localhost:9092 why-stuck orders'),
        ('The life of a transactional id, told by the directory alone:',
         'kbroker-transactions --data-dir /var/lib/kbroker history loader'),
        ('A partition as a picture, to look at in a browser:',
         'kbroker-transactions --data-dir /var/lib/kbroker timeline orders:0 --html orders-0.html'),
    ],
    'kbroker-txn-state': [
        ('All rows of a transactional id, and the current state of every id:',
         'kbroker-txn-state --data-dir /var/lib/kbroker --from-beginning --transactional-id loader\n'
         'kbroker-txn-state --data-dir /var/lib/kbroker --table'),
    ],
    'kbroker-dump-log': [
        ('The records of a partition, as kafka-dump-log prints them:',
         'kbroker-dump-log --print-data-log /var/lib/kbroker/orders-0'),
        ('Only those of transactions, as JSON; and what each segment holds:',
         "kbroker-dump-log --json --where transactional /var/lib/kbroker/orders-0\n"
         'kbroker-dump-log --stats /var/lib/kbroker/orders-0'),
    ],
    'kbroker-check': [
        ('Check everything in a log directory, and see what could be repaired:',
         'kbroker-check /var/lib/kbroker\n'
         'kbroker-check --repair /var/lib/kbroker'),
    ],
    'kbroker-ingest': [
        ('What was committed to a topic since the last run, as Parquet files by day:',
         'kbroker-ingest --topics orders --from localhost:9092 --to lake --state lake-state --partition-by topic,date'),
    ],
    'kbroker': [
        ('Write all settings with their defaults and meaning to a file, and check one:',
         'kbroker config > server.properties\n'
         'kbroker config --check server.properties'),
        ('Serve other machines, with data in a directory of its own:',
         'kbroker serve --data-dir /var/lib/kbroker --listen 0.0.0.0:9092 --advertise broker.example:9092'),
    ],
}
