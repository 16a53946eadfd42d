"""The examples of the man pages: a description and the command lines of each.

The tests run them in this order. A test's broker replaces `localhost:9092`, and its log directory replaces
`/var/lib/kbroker`.
"""

Example = tuple[str, str]

EXAMPLES: dict[str, list[Example]] = {
    'kbroker-topics': [
        ('Create and describe a topic:',
         'kbroker-topics --bootstrap-server localhost:9092 --create --topic orders --partitions 2\n'
         'kbroker-topics --bootstrap-server localhost:9092 --describe --topic orders'),
        ('Count the records of a topic that consumers can read, and those of aborted transactions:',
         'kbroker-topics --bootstrap-server localhost:9092 --count --topic orders'),
        ('List the topics in the log directory of a stopped broker:',
         'kbroker-topics --data-dir /var/lib/kbroker --list'),
    ],
    'kbroker-cluster': [
        ('Show the brokers, the features, offline partitions and open transactions in one screen:',
         'kbroker-cluster --bootstrap-server localhost:9092'),
        ('Print the API versions that each broker serves, and those that this client uses:',
         'kbroker-cluster --bootstrap-server localhost:9092 api-versions'),
    ],
    'kbroker-perf': [
        ('Write 10,000 records at 50,000 per second, in transactions of 100 ms, and read them:',
         'kbroker-perf produce --bootstrap-server localhost:9092 --topic orders --num-records 10000 \\\n'
         '    --record-size 100 --throughput 50000 --transaction-duration-ms 100\n'
         'kbroker-perf consume --bootstrap-server localhost:9092 --topic orders --num-records 10000'),
        ('Measure the time from the send of a record to its arrival at a consumer:',
         'kbroker-perf end-to-end --bootstrap-server localhost:9092 --topic orders --num-records 100 \\\n'
         '    --record-size 100'),
    ],
    'kbroker-produce': [
        ('Write lines with keys, two lines per transaction:',
         "printf 'a:1\\nb:2\\na:3\\n' | kbroker-produce --bootstrap-server localhost:9092 --topic orders \\\n"
         '    --property parse.key=true --property key.separator=: --transactional-id loader --commit-every 2'),
    ],
    'kbroker-log-dirs': [
        ('Show the largest partitions of a broker, and the free space of its disk:',
         'kbroker-log-dirs --bootstrap-server localhost:9092'),
        ('Print the size of a topic in the log directory of a stopped broker as JSON:',
         'kbroker-log-dirs --data-dir /var/lib/kbroker --topic-list orders --json'),
    ],
    'kbroker-get-offsets': [
        ('Print the end of each partition of a topic, and where read_committed consumers stop:',
         'kbroker-get-offsets --bootstrap-server localhost:9092 --topic orders\n'
         'kbroker-get-offsets --bootstrap-server localhost:9092 --topic orders --all'),
        ('Print the first offset written since a time:',
         'kbroker-get-offsets --bootstrap-server localhost:9092 --topic-partitions orders:0 --time 1700000000000'),
    ],
    'kbroker-consume': [
        ('Read committed records as a member of a group:',
         'kbroker-consume --bootstrap-server localhost:9092 --topic orders --from-beginning --max-messages 3 \\\n'
         '    --group billing --isolation-level read_committed'),
        ('Show the last five records of a topic, with their places and keys:',
         'kbroker-consume --bootstrap-server localhost:9092 --topic orders --last 5 --format \'%p:%o %k=%s\\n\''),
        ('Show the records of the last hour whose values mention an error:',
         'kbroker-consume --bootstrap-server localhost:9092 --topic orders --from 1h --to 0s --filter value=error'),
        ('Read from a log directory:',
         'kbroker-consume --data-dir /var/lib/kbroker --topic orders --json'),
    ],
    'kbroker-certs': [
        ('Make certificates for a broker and two clients, and check the settings of the broker:',
         'kbroker-certs dev certs --client admin --client app\n'
         'kbroker config --check certs/broker.properties'),
    ],
    'kbroker-groups': [
        ('Show the lag of a group, in offsets and in the records that it will read:',
         'kbroker-groups --bootstrap-server localhost:9092 --describe --group billing \\\n'
         '    --isolation-level read_committed'),
        ('Watch how fast the group catches up, for two rounds:',
         'kbroker-groups --bootstrap-server localhost:9092 --watch --group billing --rounds 2'),
        ('Reset the group to read the last hour again, first as a dry run:',
         'kbroker-groups --bootstrap-server localhost:9092 --reset-offsets --group billing --topic orders \\\n'
         '    --by-duration PT1H --dry-run\n'
         'kbroker-groups --bootstrap-server localhost:9092 --reset-offsets --group billing --topic orders \\\n'
         '    --by-duration PT1H --execute'),
    ],
    'kbroker-share-groups': [
        ('Let a share group begin at the start of a topic, first as a dry run:',
         'kbroker-share-groups --bootstrap-server localhost:9092 --reset-offsets --group workers --topic orders \\\n'
         '    --to-earliest --dry-run\n'
         'kbroker-share-groups --bootstrap-server localhost:9092 --reset-offsets --group workers --topic orders \\\n'
         '    --to-earliest --execute'),
        ('Print all share groups and their states:',
         'kbroker-share-groups --bootstrap-server localhost:9092 --list --state'),
    ],
    'kbroker-streams-groups': [
        ('Print the applications that wait for topics or move tasks:',
         'kbroker-streams-groups --bootstrap-server localhost:9092 --list --state NotReady,Assigning,Reconciling'),
    ],
    'kbroker-share-consume': [
        ('Read three records as a member of a share group, and show how often each was delivered:',
         'kbroker-share-consume --bootstrap-server localhost:9092 --topic orders --group workers \\\n'
         '    --max-messages 3 --formatter-property print.delivery=true'),
    ],
    'kbroker-acls': [
        ('Let a producer and the consumers of a group use a topic, and print the ACLs of the topic:',
         'kbroker-acls --bootstrap-server localhost:9092 --add --allow-principal User:loader --producer \\\n'
         '    --topic orders\n'
         'kbroker-acls --bootstrap-server localhost:9092 --add --allow-principal User:billing --consumer \\\n'
         '    --topic orders --group billing\n'
         'kbroker-acls --bootstrap-server localhost:9092 --list --topic orders'),
        ('Make a user an administrator in the directory of a stopped broker, when no user may do it online:',
         'kbroker-acls --data-dir /var/lib/kbroker --add --allow-principal User:admin --operation All --cluster'),
    ],
    'kbroker-configs': [
        ('Keep a compacted topic for a day, and show its settings:',
         'kbroker-configs --bootstrap-server localhost:9092 --alter --topic orders \\\n'
         "    --add-config 'retention.ms=86400000,cleanup.policy=[compact,delete]'\n"
         'kbroker-configs --bootstrap-server localhost:9092 --describe --topic orders'),
        ('Show every setting of the broker and its source as JSON:',
         'kbroker-configs --bootstrap-server localhost:9092 --describe --broker 1 --all --json'),
    ],
    'kbroker-exporter': [
        ('Print the metrics of a cluster once, without those of internal topics:',
         "kbroker-exporter --bootstrap-server localhost:9092 --topics '[^_].*' --once"),
    ],
    'kbroker-proxy': [
        ('Let a broker appear as three, with a control port:',
         'kbroker-proxy --bootstrap-server localhost:9092 --nodes 3 --control 127.0.0.1:19999'),
        ('Give clients an address without TLS for a broker that needs a login:',
         'kbroker-proxy --bootstrap-server kafka:9093 --command-config client.properties --listen 127.0.0.1:19092'),
    ],
    'kbroker-features': [
        ('Print the feature levels of a cluster:',
         'kbroker-features --bootstrap-server localhost:9092 describe'),
        ('See what the levels of Apache Kafka 4.4 would change, and then set them:',
         'kbroker-features --bootstrap-server localhost:9092 upgrade --release-version 4.4 --dry-run\n'
         'kbroker-features --bootstrap-server localhost:9092 upgrade --release-version 4.4 --yes'),
        ('Lower the level of a feature:',
         'kbroker-features --bootstrap-server localhost:9092 downgrade --feature share.version=1'),
    ],
    'kbroker-transactions': [
        ('Find out what holds back the consumers of a topic:',
         'kbroker-transactions --bootstrap-server localhost:9092 why-stuck orders'),
        ('Find it out from the log directory, and list the records that members of share groups hold:',
         'kbroker-transactions --data-dir /var/lib/kbroker why-stuck orders'),
        ('Show the life of a transactional id from the log directory:',
         'kbroker-transactions --data-dir /var/lib/kbroker history loader'),
        ('Draw a partition as a picture for a browser:',
         'kbroker-transactions --data-dir /var/lib/kbroker timeline orders:0 --html orders-0.html'),
    ],
    'kbroker-txn-state': [
        ('Show all rows of a transactional id, and the current state of every id:',
         'kbroker-txn-state --data-dir /var/lib/kbroker --from-beginning --transactional-id loader\n'
         'kbroker-txn-state --data-dir /var/lib/kbroker --table'),
    ],
    'kbroker-dump-log': [
        ('Print the records of a partition as kafka-dump-log does:',
         'kbroker-dump-log --print-data-log /var/lib/kbroker/orders-0'),
        ('Print only transactional records, as JSON, and statistics of each segment:',
         "kbroker-dump-log --json --where transactional /var/lib/kbroker/orders-0\n"
         'kbroker-dump-log --stats /var/lib/kbroker/orders-0'),
    ],
    'kbroker-check': [
        ('Check a log directory, and show what could be repaired:',
         'kbroker-check /var/lib/kbroker\n'
         'kbroker-check --repair /var/lib/kbroker'),
    ],
    'kbroker-verify': [
        ('Verify a broker for ten minutes, with faults of the network only:',
         'kbroker-verify --bootstrap-server localhost:9092'),
        ('Start a broker, and kill and pause it during the run:',
         "kbroker-verify --bootstrap-server 127.0.0.1:9092 --minutes 60 \\\n"
         "    --broker-command 'kbroker serve --listen 127.0.0.1:9092 --data-dir verified'"),
    ],
    'kbroker-ingest': [
        ('Write the records committed since the last run to Parquet files, by day:',
         'kbroker-ingest --topics orders --from localhost:9092 --to lake --state lake-state --partition-by topic,date'),
    ],
    'kbroker-delete-records': [
        ('Delete all records of a partition, first as a dry run:',
         'kbroker-delete-records --bootstrap-server localhost:9092 --topic-partition orders:0:latest --dry-run\n'
         'kbroker-delete-records --bootstrap-server localhost:9092 --topic-partition orders:0:latest'),
    ],
    'kbroker': [
        ('Write all settings with their defaults and descriptions to a file, and check it:',
         'kbroker config > server.properties\n'
         'kbroker config --check server.properties'),
        ('Serve this machine, with a separate data directory:',
         'kbroker serve --data-dir /var/lib/kbroker --listen 127.0.0.1:9092'),
        ('Print what the running broker holds in memory, and the bound of each structure:',
         'kbroker status --data-dir /var/lib/kbroker'),
    ],
}
