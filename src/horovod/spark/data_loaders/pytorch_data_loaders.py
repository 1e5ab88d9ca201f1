# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import NotYet
from horovod.data.data_loader_base import AsyncDataLoaderMixin as AsyncDataLoaderMixin
from horovod.data.data_loader_base import BaseDataLoader as BaseDataLoader


class PetastormBatchedDataLoader(NotYet): ...


class PytorchDataLoader(NotYet, BaseDataLoader): ...


class PytorchAsyncDataLoader(AsyncDataLoaderMixin, PytorchDataLoader): ...


class PytorchInfiniteDataLoader(PytorchDataLoader): ...


class PytorchInfiniteAsyncDataLoader(AsyncDataLoaderMixin, PytorchInfiniteDataLoader): ...


class PytorchInmemDataLoader(NotYet, BaseDataLoader): ...


class PytorchInmemAsyncDataLoader(AsyncDataLoaderMixin, PytorchInmemDataLoader): ...
