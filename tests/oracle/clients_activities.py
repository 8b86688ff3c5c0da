"""What sessions of clients do, and how often: the table of activities."""

from tests.oracle import clients_activities_admin as admin
from tests.oracle import clients_activities_groups as groups
from tests.oracle import clients_activities_records as records
from tests.oracle import clients_activities_shares as shares
from tests.oracle import clients_activities_transactions as transactions
from tests.oracle.clients_generator import Activity

_BOTH = ("java", "librdkafka")
_JAVA = ("java",)
#: the activity, its weight, the clients that are able to
ACTIVITIES: tuple[tuple[Activity, int, tuple[str, ...]], ...] = (
    (admin.topics, 4, _BOTH),
    (admin.wrong_topics, 3, _BOTH),
    (admin.topic_configs, 3, _BOTH),
    (admin.group_configs, 1, _JAVA),
    (admin.more_partitions, 2, _BOTH),
    (admin.rights, 2, _BOTH),
    (admin.without_rights, 3, _BOTH),
    (admin.users, 2, _BOTH),
    (admin.quotas, 2, _JAVA),
    (admin.cluster, 2, _BOTH),
    (admin.log_folders, 1, _JAVA),
    (admin.reassignments, 1, _JAVA),
    (records.producing, 4, _BOTH),
    (records.refused_records, 4, _BOTH),
    (records.many_in_flight, 2, _BOTH),
    (records.auto_created, 1, _BOTH),
    (records.append_time, 2, _BOTH),
    (records.compacted, 1, _BOTH),
    (records.offsets, 2, _BOTH),
    (records.newest_time, 1, _BOTH),
    (records.deleted_records, 3, _BOTH),
    (records.deleted_while_read, 1, _BOTH),
    (records.assigned, 5, _BOTH),
    (records.paused, 2, _BOTH),
    (records.out_of_range, 2, _BOTH),
    (groups.subscribed, 6, _BOTH),
    (groups.two_members, 3, _BOTH),
    (groups.static_member, 2, _BOTH),
    (groups.pattern, 2, _BOTH),
    (groups.no_such_topic, 1, _BOTH),
    (groups.commits, 4, _BOTH),
    (groups.no_offset, 1, _BOTH),
    (groups.offsets_of_groups, 3, _BOTH),
    (groups.other_protocol, 1, _BOTH),
    (transactions.committed, 5, _BOTH),
    (transactions.fenced, 4, _BOTH),
    (transactions.with_offsets, 4, _BOTH),
    (transactions.wrong_state, 3, _BOTH),
    (transactions.left_open, 2, _BOTH),
    (transactions.refused_inside, 2, _BOTH),
    (transactions.seen_by_admin, 3, _JAVA),
    (shares.settled, 4, _JAVA),
    (shares.taken, 3, _JAVA),
    (shares.committed_only, 2, _JAVA),
    (shares.offsets, 2, _JAVA),
    (shares.refused, 1, _JAVA),
)
