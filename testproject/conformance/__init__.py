"""Django's own tests of its task framework, from its source distribution, run on pgbroker's backend."""
