"""Makes the packages of a release. `make dist` runs it; docs/guides/packages.md says what it makes.

native    compiles libraries and programs for each architecture, and libjpeg-turbo for them
packages  puts them into wheels, archives, deb and rpm
debian    gets packages of Debian without installing them
commands  runs commands
notices   what software of others is inside: licences, and the bill of materials
checks_wheel, checks_packages   tests of what was made, for pytest
"""
