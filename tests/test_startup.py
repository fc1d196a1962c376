"""The preparations of a command before it imports torch."""

import logging

from mmairl import startup


def test_log_messages_cannot_control_a_terminal(monkeypatch):
    monkeypatch.setattr(startup, 'listen_early', lambda: None)
    before = logging.getLogRecordFactory()
    try:
        startup.prepare()
        record = logging.getLogger('a').makeRecord(
            'a', logging.INFO, 'a.py', 1, 'student of %s\nnext line', ('net\x1b[31m\r\u202e.pth',), None
        )
    finally:
        logging.setLogRecordFactory(before)
    assert record.getMessage() == 'student of net\\x1b[31m\\r\\u202e.pth\nnext line'
