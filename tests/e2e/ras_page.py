"""A page of the exporter ras about a job in all kinds of trouble, of a node that asks and of one that does not."""

from __future__ import annotations

import time

BEHIND, SILENT, LAG = "5", "7", 10
"""The rank that is LAG launches behind the others and has left another communicator; the one that is silent."""
PAGE = """\
rankwatch_ras_up{endpoint="127.0.0.1:28028"} 1
rankwatch_ras_queries_total 2
rankwatch_ras_query_errors_total{stage="cut"} 0
rankwatch_ras_timeouts_total 0
rankwatch_ras_reporter{job_id="JOB",role="reporter"} 1
rankwatch_ras_reporter{job_id="JOB",role="none"} 1
rankwatch_ras_not_asked{job_id="JOB",reason="not_elected"} 1
rankwatch_ras_report_timestamp_seconds{job_id="JOB"} NOW
rankwatch_ras_reports_total{job_id="JOB"} 2
rankwatch_ras_failures{job_id="JOB"} 0
rankwatch_ras_interval_seconds{job_id="JOB"} 7
rankwatch_library_info{flavor="nccl",job_id="JOB",version="2.30.7"} 1
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="expected"} 8
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="responding"} 7
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="missing"} 1
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="unresponsive"} 1
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="dead"} 0
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="initializing"} 1
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="finalizing"} 0
rankwatch_communicator_ranks{comm="aa01",job_id="JOB",state="aborted"} 1
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="expected"} 2
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="responding"} 1
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="missing"} 1
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="unresponsive"} 0
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="dead"} 0
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="initializing"} 0
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="finalizing"} 0
rankwatch_communicator_ranks{comm="bb01",job_id="JOB",state="aborted"} 0
rankwatch_communicator_rank_missing{comm="aa01",comm_rank="7",gpu="3",host="n1",job_id="JOB",rank="7",reason="unresponsive"} 1
rankwatch_communicator_rank_missing{comm="bb01",comm_rank="1",gpu="1",host="n1",job_id="JOB",rank="5",reason="no_communicator"} 1
rankwatch_communicator_launched_min{collective="AllReduce",comm="aa01",job_id="JOB"} 40
rankwatch_communicator_launched_min{collective="AllReduce",comm="bb01",job_id="JOB"} 50
rankwatch_communicator_launched_max{collective="AllReduce",comm="aa01",job_id="JOB"} 50
rankwatch_communicator_launched_max{collective="AllReduce",comm="bb01",job_id="JOB"} 50
rankwatch_communicator_last_launch_timestamp_seconds{comm="aa01",job_id="JOB"} NOW
rankwatch_communicator_last_launch_timestamp_seconds{comm="bb01",job_id="JOB"} NOW
rankwatch_communicator_stalled{comm="aa01",job_id="JOB"} 1
rankwatch_communicator_stalled{comm="bb01",job_id="JOB"} 0
rankwatch_communicator_suspect{comm="aa01",comm_rank="7",gpu="3",host="n1",job_id="JOB",rank="7",reason="missing"} 1
rankwatch_communicator_rank_lag{collective="AllReduce",comm="aa01",comm_rank="5",job_id="JOB",rank="5"} 10
rankwatch_communicator_async_error{comm="aa01",comm_rank="1",error="remote_error",job_id="JOB",rank="1"} 1
rankwatch_communicator_init_error{comm="aa01",comm_rank="3",error="system_error",job_id="JOB",rank="3"} 1
rankwatch_communicator_aborted{comm="aa01",comm_rank="2",job_id="JOB",rank="2"} 1
rankwatch_ras_monitor_streams_total 0
rankwatch_ras_events_total{event="PEER_DEAD"} 0
"""  # noqa: E501  # lines of a page


def ras_page(job_id: str) -> bytes:
    """Return the text."""
    return PAGE.replace("JOB", job_id).replace("NOW", f"{time.time()}").encode()
