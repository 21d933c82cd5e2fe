"""Jobs as processes of this machine: `launcher` watches keepers, `keeper` is what runs beside an attempt."""
