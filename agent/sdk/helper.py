"""Helper processes for calls that may hang.

LendHelper: lends one to an exporter. HelperSpec: what it runs. Helper: calls it. HelperHung, HelperFailed and their
base HelperError: a call without an answer.
"""

from agent.helper.client import Helper, HelperError, HelperFailed, HelperHung, HelperSpec, LendHelper
