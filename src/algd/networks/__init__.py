"""Networks and their optimiser. Whoever imports them compiles programs, which are kept."""

from algd.cache import keep_programs

keep_programs()
