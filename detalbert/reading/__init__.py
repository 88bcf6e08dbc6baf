"""Rows of questions and of documents, from files of any form that we take."""
