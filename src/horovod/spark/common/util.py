# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function
from horovod.launcher.compat.host_hash import host_hash as host_hash

check_shape_compatibility = function(__name__, "check_shape_compatibility")
check_validation = function(__name__, "check_validation")
clear_training_cache = function(__name__, "clear_training_cache")
data_type_to_numpy = function(__name__, "data_type_to_numpy")
data_type_to_str = function(__name__, "data_type_to_str")
get_dataset_properties = function(__name__, "get_dataset_properties")
get_output_cols = function(__name__, "get_output_cols")
get_simple_meta_from_parquet = function(__name__, "get_simple_meta_from_parquet")
get_spark_df_output_schema = function(__name__, "get_spark_df_output_schema")
is_databricks = function(__name__, "is_databricks")
numpy_type_to_str = function(__name__, "numpy_type_to_str")
prepare_data = function(__name__, "prepare_data")
pyarrow_to_spark_data_type = function(__name__, "pyarrow_to_spark_data_type")
spark_scalar_to_python_type = function(__name__, "spark_scalar_to_python_type")
to_list = function(__name__, "to_list")
to_petastorm_fn = function(__name__, "to_petastorm_fn")
