"""Helper processes for calls that may hang.

LendHelper: lends a helper to an exporter. HelperSpec: the description of a helper. Helper: calls a helper process.
HelperHung, HelperFailed and their base HelperError: a call without a reply.
"""

from agent.helper.client import Helper, HelperError, HelperFailed, HelperHung, HelperSpec, LendHelper
