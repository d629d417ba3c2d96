"""Judgement: raw samples in, outcomes with reasons out. Knows neither engines nor releases."""
