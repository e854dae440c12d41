"""What inspection counts, on data where every fault occurs a known number of times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_artefacts import make_corpus

from raydr.data.inspection import SplitInspection, count_blank
from raydr.data.inspection_report import CorpusReport, InspectionReport, Lengths, measure_lengths
from raydr.data.tables import to_table


def lengths(texts: list[str]) -> Lengths:
    """In words, of which three are kept."""
    return measure_lengths(np.array([len(text.split()) for text in texts], dtype=np.int64), max_length=3)


@pytest.fixture
def split(tmp_path: Path) -> SplitInspection:
    texts = ["Paris is here", "paris  IS here", "London", "Berlin", "Rome and Paris"]
    corpus = make_corpus(
        tmp_path / "corpus",
        [
            {"passage_id": f"p{at}", "title": "", "text": text, "source": "a.tsv", "line": at + 1}
            for at, text in enumerate(texts)
        ],
        part_rows=2,
    )
    queries = to_table(
        "queries",
        [
            {"query_id": "q0", "text": "capital of France", "answers": ["Paris"]},
            {"query_id": "q1", "text": "Capital  of france", "answers": ["Madrid"]},
            {"query_id": "q2", "text": "four words are here", "answers": None},
            {"query_id": "q3", "text": " ", "answers": []},
        ],
    )
    qrels = to_table(
        "qrels",
        [
            {"query_id": "q0", "passage_id": "p0"},
            {"query_id": "q1", "passage_id": "p0", "noise": "mismatched", "original_passage_id": "p4"},
            {"query_id": "q1", "passage_id": "p2"},
            {"query_id": "q2", "passage_id": "p3", "relevance": 0},
            {"query_id": "q2", "passage_id": "gone"},
            {"query_id": "nobody", "passage_id": "p2", "relevance": 0},
        ],
    )
    negatives = to_table(
        "negatives",
        [
            {"query_id": "q0", "passage_id": "p4", "miner": "bm25", "rank": 2},
            {"query_id": "q0", "passage_id": "p1", "miner": "bm25", "rank": 1},
            {"query_id": "q0", "passage_id": "p3", "miner": "bm25", "rank": 3},
            {"query_id": "q1", "passage_id": "p3", "miner": "planted", "rank": 1, "noise": "false_negative"},
        ],
    )
    return SplitInspection(queries, qrels, negatives, corpus, seed=0)


def test_counts(split: SplitInspection) -> None:
    report = split.report("string", [], 100, lengths)
    assert report.num_queries == 4
    assert report.num_judgments == 6
    assert report.num_positives == 4
    assert report.num_queries_without_positive == 1
    assert report.most_positives == 2
    assert report.num_queries_with_repeated_text == 2
    assert report.num_empty_queries == 1
    assert report.num_judgments_of_missing_passages == 1
    assert report.missing_passages == ["gone"]
    assert report.num_judgments_of_missing_queries == 1
    assert report.num_queries_sharing_a_positive == 2
    assert report.num_queries_with_unjudged_copies == 2
    assert report.num_negatives == 4
    assert report.num_queries_with_negatives == 2
    assert report.num_negatives_equal_to_a_positive == 1
    assert report.noise == {"mismatched": 1, "false_negative": 1}
    assert report.lengths is not None
    assert report.lengths.share_truncated == 0.25
    assert report.lengths.longest == 4


def test_a_copy_with_a_judgment_is_no_fault(split: SplitInspection) -> None:
    split.qrels = pa.concat_tables(
        [split.qrels, to_table("qrels", [{"query_id": "q0", "passage_id": "p1", "relevance": 0}])]
    )
    report = split.report("string", [], 100, lengths)
    assert report.num_queries_with_unjudged_copies == 1


def test_answers_are_looked_for_in_positives_and_negatives(split: SplitInspection) -> None:
    answers = split.report("string", [], 100, lengths).answers
    assert answers is not None
    # q0: p0 has the answer, p4 and p1 of its three negatives too; q1: neither positive has it.
    assert answers.num_queries == 2
    assert answers.num_queries_without_answer_in_positives == 1
    assert answers.num_negatives == 4
    assert answers.num_negatives_with_answer == 2
    only_q1 = split.report("string", ["q1"], 100, lengths).answers
    assert only_q1 is not None
    assert (only_q1.num_queries, only_q1.num_negatives_with_answer) == (1, 0)
    assert split.report("string", ["other"], 100, lengths).answers is None


def test_the_sample_bounds_what_is_read(split: SplitInspection) -> None:
    report = split.report("string", [], 1, lengths)
    assert report.lengths is not None
    assert report.lengths.num_sampled == 1
    assert split.report("string", [], 1).lengths is None
    assert report.answers is not None
    assert report.answers.num_queries == 1
    assert report.num_queries == 4


def test_examples_show_the_best_ranked_negative_and_provenance(split: SplitInspection) -> None:
    examples = {example.query_id: example for example in split.examples("train", 4)}
    assert set(examples) == {"q0", "q1", "q2"}
    assert (examples["q0"].positive, examples["q0"].source) == ("Paris is here", "a.tsv:1")
    assert (examples["q0"].negative_id, examples["q0"].negative) == ("p1", "paris  IS here")
    assert examples["q2"].positive == "(not in the corpus)"
    assert examples["q2"].negative is None


def test_findings_say_what_to_do(split: SplitInspection) -> None:
    passages = measure_lengths(np.array([1, 5, 9]), max_length=4)
    report = InspectionReport(
        corpus_fingerprint="c",
        dataset_fingerprint="d",
        corpus=CorpusReport(num_passages=5, num_duplicates=1, num_empty_texts=0, num_empty_titles=5, lengths=passages),
        splits={"train": split.report("string", [], 100, lengths)},
        num_leaked=0,
        examples=[],
    )
    findings = "\n".join(report.findings())
    assert "1 passages (20.0%) are copies" in findings
    assert "66.7% of the passages are longer than model.passage.max_length (4)" in findings
    assert "'gone'" in findings
    assert "train: 2 queries have a copy of a positive without a judgment" in findings
    assert "50.0% of the negatives contain an answer" in findings
    assert "train: 1 queries are empty" in findings
    assert "train: 2 queries have the text of another query of the split" in findings
    assert "train: 1 of 2 queries with answers have no answer in a positive" in findings
    assert "empty text" not in findings
    assert InspectionReport.model_validate_json(report.model_dump_json()) == report


def test_blank() -> None:
    assert count_blank(pa.chunked_array([["", " \n", "a"]])) == 2
    assert count_blank(pa.chunked_array([], type=pa.string())) == 0
