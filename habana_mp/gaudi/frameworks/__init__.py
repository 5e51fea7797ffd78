"""The modules that the finder finds for Gaudi scripts. They are on no import path."""
