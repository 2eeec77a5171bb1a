"""A short soak; `tests/serve/soak.py` is the long one."""

from soak import soak


def test_nothing_is_lost_mixed_up_or_leaked() -> None:
    result = soak(300, 40, clients=12)
    assert result["wrong"] == []
    assert result["answered"] == 300
    assert result["server_errors"] == 0
    for moment in ("after", "after_kills"):
        now, before = result[moment], result["before"]
        assert (now["running"], now["waiting"], now["pages_used"]) == (0, 0, 0)
        assert now["files"] <= before["files"] + 12, "connections that were not closed"
        assert now["rss_mb"] < before["rss_mb"] + 64
    stopped = result["sigterm"]
    assert stopped["exit code"] == 0
    assert stopped.get("lost", 0) == stopped.get("never accepted", 0) == 0
    assert stopped.get("answered", 0) > 0
