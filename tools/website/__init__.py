"""The site: pages from the documents, reference pages from the code, and mkdocs.

    python -m website [--stage]

Stages the pages into build/site/pages, in the folders that they have in the repository, so that their links hold. With
--stage it stops there. Then mkdocs makes build/site/html. A link that leads nowhere, or a page that the menu does not
list, is an error. Needs bin/stocached and tools/requirements-site.txt.
"""
