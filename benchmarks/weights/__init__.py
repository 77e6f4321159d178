"""Weights and layers on a CPU: conversion, linear layers."""
