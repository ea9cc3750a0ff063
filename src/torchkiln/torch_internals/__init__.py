"""The one place that knows private parts of torch, each with the contract that it serves.

Every name here says what torch 2.13 does behind it ("torch:") and which promise of ours rests on
that ("for:"). `tests/torch_internals` tests each contract, so that a new version of torch fails
there first, by name. Nothing is imported here: take names from the file of their topic.
"""
