"""Checked steps in other people's loops: one small file per peer, which imports that peer and is imported only on use.

Each is an extra of the distribution: `pip install 'strictstep[lightning]'`, then
`from strictstep.schema.integrations import lightning`.
"""
