"""`.zenodo.json` and `codemeta.json` say what CITATION.cff says."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness.base import ADDRESS, AUTHORS, __version__
from tests.labs.golden import compare_golden

ROOT = Path(__file__).parents[2]


@pytest.fixture
def citation() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML, which the documentation's Markdown needs")
    content: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert content["version"] == __version__
    return content


def test_authors_and_address_are_those_of_the_code(citation: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [author["name"] for author in citation["authors"]] == [AUTHORS]
    assert citation.get("repository-code", "") == ADDRESS
    assert project.get("urls", {}).get("Repository", "") == ADDRESS
    assert project["version"] == __version__


def as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def test_zenodo_has_what_the_citation_has(citation: dict[str, Any]) -> None:
    related = []
    for reference in citation["references"]:
        (identifier,) = reference["identifiers"]
        related.append({"identifier": identifier["value"], "relation": "isDerivedFrom", "scheme": "arxiv"})
    zenodo = {
        "title": citation["title"],
        "version": citation["version"],
        "upload_type": "software",
        "description": citation["abstract"],
        "creators": [{"name": author["name"]} for author in citation["authors"]],
        "license": citation["license"],
        "keywords": citation["keywords"],
        "related_identifiers": related,
    }
    compare_golden(as_json(zenodo), ROOT / ".zenodo.json")


def test_codemeta_has_what_the_citation_has(citation: dict[str, Any]) -> None:
    codemeta = {
        "@context": "https://w3id.org/codemeta/3.0",
        "@type": "SoftwareSourceCode",
        "name": citation["title"],
        "version": citation["version"],
        "description": citation["abstract"],
        "author": [{"@type": "Organization", "name": author["name"]} for author in citation["authors"]],
        "license": f"https://spdx.org/licenses/{citation['license']}",
        "keywords": citation["keywords"],
        "programmingLanguage": ["Python", "C++"],
        "operatingSystem": "Linux",
        **({"codeRepository": citation["repository-code"]} if "repository-code" in citation else {}),
        "referencePublication": [
            {
                "@type": "ScholarlyArticle",
                "name": reference["title"],
                "identifier": reference["identifiers"][0]["value"],
            }
            for reference in citation["references"]
        ],
    }
    compare_golden(as_json(codemeta), ROOT / "codemeta.json")
