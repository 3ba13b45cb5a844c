"""Write the table of sentences anew: ``python -m tests.wording``; its difference shows what users will read."""

from tests.wording.refusals import TABLE, page

TABLE.write_text(page())
