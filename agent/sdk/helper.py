"""Processes of their own, for calls that can hang.

LendHelper: starts one for an exporter; HelperSpec: what it runs; Helper: calls it. HelperHung, HelperFailed and their
base HelperError: the three ends of a call that gave no answer.
"""

from agent.helper.client import Helper, HelperError, HelperFailed, HelperHung, HelperSpec, LendHelper
