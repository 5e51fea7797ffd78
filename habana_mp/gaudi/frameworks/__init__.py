"""The modules that the finder gives to Gaudi scripts. They lie on no import path."""
