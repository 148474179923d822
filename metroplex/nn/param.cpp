#include "nn/param.h"

#include "base/error.h"

namespace metroplex::nn {

Shard even_shard(int dim, int64_t global_rows, int parts, int index) {
  MPX_CHECK(parts > 0 && global_rows % parts == 0, "nn", global_rows, " rows cannot be split evenly over ", parts,
            " tensor-parallel ranks; choose a tensor_parallel size that divides it");
  const int64_t rows = global_rows / parts;
  return Shard{dim, {RowRange{0, index * rows, rows}}};
}

}  // namespace metroplex::nn
