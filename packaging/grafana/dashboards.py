"""Writes the dashboards of this directory. They need Grafana 10 or newer, and nothing but a Prometheus.

    python packaging/grafana/dashboards.py

In a query, `@` stands for the broker or the exporter that the reader has chosen.
"""
import json
import pathlib
import string

HERE = pathlib.Path(__file__).parent
SCHEMA_VERSION = 38
WIDTH, ROW_HEIGHT = 24, 1
DATA_SOURCE = {'type': 'prometheus', 'uid': '${datasource}'}
PER_SECOND, BYTES_PER_SECOND, SECONDS, BYTES, SHARE = 'ops', 'Bps', 's', 'bytes', 'percentunit'
BAD_ABOVE_ZERO = ((None, 'green'), (1, 'red'))
BELOW_A_TENTH = ((None, 'red'), (0.03, 'orange'), (0.1, 'green'))
DAYS_LEFT = ((None, 'red'), (7 * 86_400, 'orange'), (30 * 86_400, 'green'))
MINUTES_OPEN = ((None, 'green'), (300, 'orange'))


def rate(counter, *labels):
    """Return a query of the rate of a counter, summed by labels."""
    by = f' by ({", ".join(labels)})' if labels else ''
    return f'sum{by} (rate({counter}{{@}}[$__rate_interval]))'


def quantile(part, histogram, *labels):
    return (f'histogram_quantile({part}, sum by ({", ".join((*labels, "le"))}) '
            f'(rate({histogram}_bucket{{@}}[$__rate_interval])))')


def top(query):
    return f'topk(10, {query})'


def graph(title, *queries, unit='short', width=8, about=''):
    """Return a panel of curves. A query is (expression, legend)."""
    panel = _panel('timeseries', title, queries, width, 8, about)
    panel['fieldConfig']['defaults'] = {
        'unit': unit, 'min': 0, 'color': {'mode': 'palette-classic'},
        'custom': {'lineWidth': 1, 'fillOpacity': 8, 'showPoints': 'never', 'spanNulls': False}}
    panel['options'] = {'legend': {'displayMode': 'list', 'placement': 'bottom', 'showLegend': True, 'calcs': []},
                        'tooltip': {'mode': 'multi', 'sort': 'desc'}}
    return panel


def number(title, query, unit='short', steps=((None, 'text'),), about=''):
    """Return a panel of the last value. `steps` are (the least value, its colour)."""
    panel = _panel('stat', title, [(query, '')], 4, 4, about)
    panel['fieldConfig']['defaults'] = {
        'unit': unit, 'thresholds': {'mode': 'absolute', 'steps': [
            {'value': value, 'color': colour} for value, colour in steps]}}
    panel['options'] = {
        'reduceOptions': {'calcs': ['lastNotNull'], 'fields': '', 'values': False}, 'colorMode': 'value',
        'graphMode': 'none', 'textMode': 'auto', 'justifyMode': 'auto', 'orientation': 'auto'}
    return panel


def table(title, query, unit='short', width=12, about=''):
    """Return a panel with a row for each series. The value of an info metric is always 1, so it is hidden."""
    hidden = ['Time', '__name__', 'instance', 'job', *(['Value'] if '_info{' in query else [])]
    panel = _panel('table', title, [(query, '')], width, 8, about)
    panel['targets'][0] |= {'format': 'table', 'instant': True, 'range': False}
    panel['fieldConfig']['defaults'] = {'unit': unit}
    panel['options'] = {'showHeader': True, 'cellHeight': 'sm'}
    panel['transformations'] = [{'id': 'organize', 'options': {
        'excludeByName': dict.fromkeys(hidden, True), 'indexByName': {}, 'renameByName': {}}}]
    return panel


def _panel(kind, title, queries, width, height, about):
    return {
        'type': kind, 'title': title, 'description': about, 'datasource': DATA_SOURCE,
        'gridPos': {'w': width, 'h': height}, 'fieldConfig': {'defaults': {}, 'overrides': []},
        'targets': [{'refId': letter, 'datasource': DATA_SOURCE, 'expr': query.replace('@', 'instance="$instance"'),
                     'legendFormat': legend, 'range': True}
                    for letter, (query, legend) in zip(string.ascii_uppercase, queries, strict=False)]}


BROKER = {
    'Health': [
        number('Up for', 'time() - kbroker_start_timestamp_seconds{@}', SECONDS),
        number('Offline partitions', 'kbroker_partitions_offline{@}', steps=BAD_ABOVE_ZERO),
        number('Failed log directory', 'kbroker_log_directory_failed{@}', steps=BAD_ABOVE_ZERO),
        number('Failed syncs', 'kbroker_sync_failures_total{@}', steps=BAD_ABOVE_ZERO, about='Since the start.'),
        number('Hanging transactions', 'kbroker_transactions_hanging{@}', steps=BAD_ABOVE_ZERO,
               about='Partitions that are held by a transaction which nothing will end.'),
        number('Oldest open transaction', 'kbroker_transaction_oldest_open_age_seconds{@}', SECONDS, MINUTES_OPEN),
        number('Held offsets', 'kbroker_partitions_held_offsets{@}',
               about='Offsets that read_committed consumers cannot read yet.'),
        number('Free disk', 'kbroker_disk_free_bytes{@} / kbroker_disk_size_bytes{@}', SHARE, BELOW_A_TENTH),
        number('First certificate expires in',
               'min(kbroker_certificate_expiry_timestamp_seconds{kind="keystore", @}) - time()', SECONDS, DAYS_LEFT),
        number('Late requests refused', 'kbroker_transactions_late_requests_refused_total{@}', steps=BAD_ABOVE_ZERO,
               about='Since the start.'),
        number('Started after a clean stop', 'kbroker_start_after_clean_stop{@}'),
        number('The start took', 'kbroker_start_duration_seconds{@}', SECONDS),
        table('Release', 'kbroker_build_info{@}'),
        table('Feature levels', 'kbroker_feature_level{@}'),
    ],
    'Throughput': [
        graph('Bytes of listeners', (rate('kbroker_listener_received_bytes_total', 'listener'), '{{listener}} in'),
              (rate('kbroker_listener_sent_bytes_total', 'listener'), '{{listener}} out'), unit=BYTES_PER_SECOND),
        graph('Records produced by topic', (top(rate('kbroker_topic_produced_records_total', 'topic')), '{{topic}}'),
              unit=PER_SECOND),
        graph('Records fetched by topic', (top(rate('kbroker_topic_fetched_records_total', 'topic')), '{{topic}}'),
              unit=PER_SECOND, about='Markers of transactions count, because a Fetch sends batches unopened.'),
        graph('Bytes produced by topic', (top(rate('kbroker_topic_produced_bytes_total', 'topic')), '{{topic}}'),
              unit=BYTES_PER_SECOND),
        graph('Bytes fetched by topic', (top(rate('kbroker_topic_fetched_bytes_total', 'topic')), '{{topic}}'),
              unit=BYTES_PER_SECOND),
        graph('Connections by software',
              (top('sum by (client_software, client_version) (kbroker_connections{@})'),
               '{{client_software}} {{client_version}}')),
        graph('Connections', (rate('kbroker_connections_accepted_total'), 'accepted'),
              (rate('kbroker_connections_closed_total'), 'closed'),
              (rate('kbroker_connections_refused_total', 'reason'), 'refused: {{reason}}'), unit=PER_SECOND),
        graph('Logins', (rate('kbroker_logins_total', 'mechanism'), '{{mechanism}}'),
              (rate('kbroker_failed_logins_total', 'mechanism'), '{{mechanism}} failed'),
              (rate('kbroker_tls_failed_handshakes_total'), 'TLS handshake failed'), unit=PER_SECOND),
        graph('Denials and quotas', (rate('kbroker_authorization_denials_total', 'operation'), 'denied: {{operation}}'),
              (rate('kbroker_quota_throttles_total', 'quota'), 'quota: {{quota}}'), unit=PER_SECOND),
    ],
    'Requests': [
        graph('Requests by API', (rate('kbroker_requests_total', 'api'), '{{api}}'), unit=PER_SECOND),
        graph('Errors in answers', (rate('kbroker_request_errors_total', 'api', 'error'), '{{api}} {{error}}'),
              unit=PER_SECOND, about='Some are part of normal work, such as MEMBER_ID_REQUIRED.'),
        graph('99 % wait in the queue for less than',
              (quantile(0.99, 'kbroker_request_queue_seconds', 'api'), '{{api}}'), unit=SECONDS),
        graph('99 % hold the loop for less than',
              (quantile(0.99, 'kbroker_request_work_seconds', 'api'), '{{api}}'), unit=SECONDS),
        graph('99 % wait for less than', (quantile(0.99, 'kbroker_request_wait_seconds', 'api'), '{{api}}'),
              unit=SECONDS, about='A Produce or a commit waits for the disk, a Fetch for records, a JoinGroup for '
              'other members.'),
        graph('99 % are sent in less than', (quantile(0.99, 'kbroker_response_send_seconds'), 'all APIs'),
              unit=SECONDS),
    ],
    'Transactions': [
        graph('Open transactions', ('kbroker_transactions_open{@}', 'open'),
              ('kbroker_transactions_hanging{@}', 'hanging partitions')),
        graph('Age of the oldest open transaction', ('kbroker_transaction_oldest_open_age_seconds{@}', 'oldest'),
              unit=SECONDS),
        graph('Ends', (rate('kbroker_transactions_begun_total'), 'begun'),
              (rate('kbroker_transactions_committed_total'), 'committed'),
              (rate('kbroker_transactions_aborted_total'), 'aborted'),
              (rate('kbroker_transactions_timed_out_total'), 'of them timed out'),
              (rate('kbroker_transactions_fenced_total'), 'of them fenced'), unit=PER_SECOND),
        graph('Last stable offset to high watermark',
              ('kbroker_partition_last_stable_offset_distance{@}', '{{topic}}-{{partition}}'),
              about='The partitions that are held most.'),
        graph('Held', ('kbroker_partitions_held{@}', 'partitions'), ('kbroker_partitions_held_offsets{@}', 'offsets')),
        graph('Transactional ids by state', ('kbroker_transactional_ids{@}', '{{state}}')),
        graph('Late requests refused', (rate('kbroker_transactions_late_requests_refused_total'), 'refused'),
              unit=PER_SECOND),
    ],
    'Groups': [
        graph('Lag to the high watermark', (top('kbroker_group_lag{@}'), '{{group}}'), width=12),
        graph('Lag to the last stable offset', (top('kbroker_group_stable_lag{@}'), '{{group}}'), width=12,
              about='What a read_committed consumer can still read.'),
        graph('Lag by topic, to the high watermark', (top('kbroker_group_topic_lag{@}'), '{{group}} {{topic}}'),
              width=12),
        graph('Lag by topic, to the last stable offset',
              (top('kbroker_group_topic_stable_lag{@}'), '{{group}} {{topic}}'), width=12),
        graph('Groups by kind and state', ('kbroker_groups{@}', '{{kind}} {{state}}')),
        graph('Members', (top('kbroker_group_members{@}'), '{{group}}')),
        graph('Share groups: records in flight', (top('kbroker_share_group_in_flight_records{@}'), '{{group}}')),
        graph('Share groups: deliveries', (rate('kbroker_share_acquired_records_total'), 'all'),
              (rate('kbroker_share_redelivered_records_total'), 'of them repeated'), unit=PER_SECOND),
        graph('Dead letters', (rate('kbroker_share_dead_letters_written_total'), 'written'),
              (rate('kbroker_share_dead_letters_refused_total'), 'refused'),
              (rate('kbroker_share_dead_letter_failures_total'), 'failed'), unit=PER_SECOND),
        graph('Dead letters that wait', ('kbroker_share_dead_letters_waiting{@}', 'records')),
    ],
    'Disk and log': [
        graph('Disk', ('kbroker_disk_free_bytes{@}', 'free'), ('kbroker_disk_size_bytes{@}', 'size'), unit=BYTES),
        graph('Size by topic', (top('kbroker_topic_size_bytes{@}'), '{{topic}}'), unit=BYTES),
        graph('Topics, partitions, segments', ('kbroker_topics{@}', 'topics'), ('kbroker_partitions{@}', 'partitions'),
              ('sum(kbroker_topic_segments{@})', 'segments')),
        graph('Time of a sync', (quantile(0.5, 'kbroker_sync_seconds'), '50 %'),
              (quantile(0.99, 'kbroker_sync_seconds'), '99 %'), unit=SECONDS),
        graph('Syncs', (rate('kbroker_sync_seconds_count'), 'syncs'), (rate('kbroker_synced_files_total'), 'files'),
              (rate('kbroker_sync_failures_total'), 'failed'), unit=PER_SECOND),
        graph('Bytes not yet synced', ('kbroker_unsynced_bytes{@}', 'bytes'), unit=BYTES),
        graph('Page-cache misses', (rate('kbroker_page_cache_missed_bytes_total'), 'bytes'), unit=BYTES_PER_SECOND,
              about='What a thread reads from the disk for consumers.'),
        graph('Retention', (rate('kbroker_retention_deleted_bytes_total'), 'deleted'), unit=BYTES_PER_SECOND),
        graph('Cleaner', (rate('kbroker_cleaner_read_bytes_total'), 'read'),
              (rate('kbroker_cleaner_written_bytes_total'), 'written'), unit=BYTES_PER_SECOND),
        graph('Largest dirty part of a compacted log', ('kbroker_cleaner_worst_dirty_ratio{@}', 'dirty'), unit=SHARE),
        graph('Checkpoints', (rate('kbroker_checkpoint_writes_total', 'file'), '{{file}}'), unit=PER_SECOND),
        graph('Metadata without a snapshot', ('kbroker_metadata_uncovered_bytes{@}', 'bytes'), unit=BYTES,
              about='The next start reads them.'),
        table('Certificates: time left', 'kbroker_certificate_expiry_timestamp_seconds{@} - time()', SECONDS, WIDTH),
    ],
    'Memory and loop': [
        graph('Memory of the process', ('kbroker_process_resident_memory_bytes{@}', 'resident'),
              ('kbroker_process_max_resident_memory_bytes{@}', 'at most so far'), unit=BYTES),
        graph('Memory by structure', (top('kbroker_memory_held_bytes{@}'), '{{what}}'), unit=BYTES),
        graph('Memory by structure, part of its bound',
              (top('kbroker_memory_held_bytes{@} / (kbroker_memory_bound_bytes{@} > 0)'), '{{what}}'), unit=SHARE),
        graph('Entries, part of their bound', (top('kbroker_entries{@} / (kbroker_entries_bound{@} > 0)'), '{{what}}'),
              unit=SHARE),
        graph('Processor time', (rate('kbroker_process_cpu_seconds_total'), 'of one processor'), unit=SHARE),
        graph('Descriptors', ('kbroker_process_open_fds{@}', 'open'), ('kbroker_process_max_fds{@}', 'at most')),
        graph('Turns of the loop', (rate('kbroker_loop_turns_total'), 'turns'), unit=PER_SECOND),
        graph('Turns of 100 ms or longer', (rate('kbroker_loop_long_turns_total'), 'turns'), unit=PER_SECOND),
        graph('The longest since the start', ('kbroker_loop_longest_turn_seconds{@}', 'turn'),
              ('kbroker_loop_longest_tick_seconds{@}', 'tick'), unit=SECONDS),
        table('Series left out of a scrape', 'kbroker_metrics_series_left_out{@}', width=WIDTH),
    ],
}

EXPORTER = {
    'Health': [
        number('Cluster reached', 'kbroker_exporter_up{@}', steps=((None, 'red'), (1, 'green'))),
        number('Brokers', 'kafka_brokers{@}'),
        number('Offline partitions', 'kbroker_exporter_offline_partitions{@}', steps=BAD_ABOVE_ZERO),
        number('Under-replicated partitions', 'sum(kafka_topic_partition_under_replicated_partition{@})',
               steps=BAD_ABOVE_ZERO),
        number('Hanging transactions', 'kbroker_exporter_transactions_hanging{@}', steps=BAD_ABOVE_ZERO),
        number('Oldest open transaction', 'kbroker_exporter_transaction_oldest_open_age_seconds{@}', SECONDS,
               MINUTES_OPEN),
        table('Cluster', 'kbroker_exporter_cluster_info{@}'),
        table('Brokers', 'kafka_broker_info{@}'),
    ],
    'Transactions': [
        graph('Open transactions', ('sum by (state) (kbroker_exporter_transactions_open{@})', '{{state}}')),
        graph('Oldest open transactions',
              (top('kbroker_exporter_transaction_open_age_seconds{@}'), '{{transactional_id}}'), unit=SECONDS),
        graph('Last stable offset to high watermark',
              (top('kbroker_exporter_partition_held_offsets{@} > 0'), '{{topic}}-{{partition}}')),
        table('Hanging: time since the last record', 'kbroker_exporter_transaction_hanging_age_seconds{@}', SECONDS,
              WIDTH, 'kbroker-transactions find-hanging says how to end them.'),
    ],
    'Groups': [
        graph('Lag to the high watermark', (top('sum by (consumergroup) (kafka_consumergroup_lag_sum{@})'),
                                            '{{consumergroup}}')),
        graph('Lag to the last stable offset',
              (top('sum by (group) (kbroker_exporter_group_lag_to_last_stable_offset{@})'), '{{group}}')),
        graph('Lag in records that a read_committed consumer gets',
              (top('sum by (group) (kbroker_exporter_group_lag_records{@} '
                   'or kbroker_exporter_group_lag_records_at_most{@})'), '{{group}}'),
              about='The exact number, or its upper bound where it is not known.'),
        graph('Age of the first unread batch',
              (top('max by (group) (kbroker_exporter_group_offset_age_seconds{@})'), '{{group}}'), unit=SECONDS),
        graph('Members', (top('kafka_consumergroup_members{@}'), '{{consumergroup}}')),
        graph('Share groups: lag', (top('sum by (group) (kbroker_exporter_share_group_lag{@})'), '{{group}}')),
        table('Groups', 'kbroker_exporter_group_info{@}', width=WIDTH),
    ],
    'Topics and disk': [
        graph('Offsets appended by topic',
              (top('sum by (topic) (rate(kafka_topic_partition_current_offset{@}[$__rate_interval]))'), '{{topic}}'),
              unit=PER_SECOND),
        graph('Size by topic', (top('kbroker_exporter_topic_size_bytes{@}'), '{{topic}}'), unit=BYTES),
        graph('Free part of log directories',
              ('kbroker_exporter_log_directory_usable_bytes{@} / kbroker_exporter_log_directory_total_bytes{@}',
               '{{broker}} {{log_directory}}'), unit=SHARE),
    ],
    'Exporter': [
        graph('Time of a collection', ('kbroker_exporter_collection_duration_seconds{@}', 'duration'), unit=SECONDS),
        graph('Requests of a collection', ('kbroker_exporter_collection_requests{@}', '{{api}}')),
        graph('Collections and scrapes', (rate('kbroker_exporter_collections_total', 'result'), '{{result}}'),
              (rate('kbroker_exporter_scrapes_total'), 'scrapes'), unit=PER_SECOND),
        table('Left out after an error', 'kbroker_exporter_collection_problems{@}', width=WIDTH),
    ],
}


def dashboard(uid, title, instances, rows):
    """Return a dashboard. `instances` is the metric whose label `instance` has the names to choose from."""
    panels, y = [], 0
    for name, members in rows.items():
        panels.append({'type': 'row', 'title': name, 'collapsed': False, 'panels': [],
                       'gridPos': {'x': 0, 'y': y, 'w': WIDTH, 'h': ROW_HEIGHT}})
        y += ROW_HEIGHT
        x = height = 0
        for panel in members:
            place = panel['gridPos']
            if x + place['w'] > WIDTH:
                x, y = 0, y + height
            panels.append(panel | {'gridPos': {'x': x, 'y': y, **place}})
            x, height = x + place['w'], place['h']
        y += height
    query = f'label_values({instances}, instance)'
    return {
        'uid': uid, 'title': title, 'tags': ['kafka', 'kbroker'], 'schemaVersion': SCHEMA_VERSION, 'version': 1,
        'editable': True, 'graphTooltip': 1, 'refresh': '30s', 'timezone': 'browser', 'fiscalYearStartMonth': 0,
        'time': {'from': 'now-1h', 'to': 'now'}, 'timepicker': {}, 'links': [], 'annotations': {'list': []},
        'templating': {'list': [
            {'name': 'datasource', 'label': 'Data source', 'type': 'datasource', 'query': 'prometheus', 'hide': 0,
             'refresh': 1, 'regex': '', 'multi': False, 'includeAll': False, 'options': []},
            {'name': 'instance', 'label': 'Instance', 'type': 'query', 'datasource': DATA_SOURCE,
             'query': {'query': query, 'refId': 'instance'}, 'hide': 0, 'refresh': 2, 'sort': 1,
             'regex': '', 'multi': False, 'includeAll': False, 'options': []}]},
        'panels': [{'id': number, **panel} for number, panel in enumerate(panels, 1)]}


def dashboards():
    """Return the texts of the dashboards by the names of their files."""
    found = {'kbroker.json': dashboard('kbroker', 'kbroker', 'kbroker_build_info', BROKER),
             'kafka-exporter.json': dashboard('kbroker-exporter', 'Kafka, by kbroker-exporter',
                                              'kbroker_exporter_build_info', EXPORTER)}
    return {name: json.dumps(content, indent=1) + '\n' for name, content in found.items()}


if __name__ == '__main__':
    for file_name, text in dashboards().items():
        (HERE / file_name).write_text(text)
