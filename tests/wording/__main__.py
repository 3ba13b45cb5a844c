"""Write the tables of sentences anew: ``python -m tests.wording``; their difference shows what users will read."""

from tests.wording.refusals import pages

for table, page in pages().items():
    table.write_text(page)
