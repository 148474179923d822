// Rows of tables, and optimizer state in fewer bits, on a GPU: same bits as the CPU reference.
#include <tuple>

#include "base/error.h"
#include "device/device.h"
#include "kernels/block8.h"
#include "kernels/embedding.h"
#include "kernels/twins.h"
#include "support/gpu.h"

namespace metroplex::kernels::storage_cuda_test {
namespace {

// Some rows often, some never, some outside the table.
at::Tensor some_indices(int64_t count, int64_t rows) {
  return at::arange(count, at::kLong).mul(7919).remainder(rows / 2 + 3).sub(1);
}

template <class T>
void check_gather(const TableShape& shape, bool add) {
  const at::Tensor table = values<T>({shape.rows, shape.width}, 0.7),
                   out = values<T>({shape.count, shape.width}, 0.3), indices = some_indices(shape.count, shape.rows);
  const at::Tensor gtable = table.to(at::kCUDA), gout = out.to(at::kCUDA), gindices = indices.to(at::kCUDA);
  gather_rows<T>(data<T>(table), data<int64_t>(indices), data<T>(out), add, shape);
  gather_rows_cuda<T>(data<T>(gtable), data<int64_t>(gindices), data<T>(gout), add, shape, device::current_stream());
  EXPECT_TRUE(at::equal(gout.cpu(), out));
}

template <class Table, class Dout>
void check_scatter(const TableShape& shape) {
  const at::Tensor table = values<Table>({shape.rows, shape.width}, 0.7),
                   dout = values<Dout>({shape.count, shape.width}, 0.3),
                   indices = some_indices(shape.count, shape.rows);
  const at::Tensor gtable = table.to(at::kCUDA), gdout = dout.to(at::kCUDA);
  at::Tensor sorted, order;
  std::tie(sorted, order) = indices.to(at::kCUDA).sort(/*stable=*/true, 0, false);
  scatter_add_rows<Table, Dout>(data<Table>(table), data<int64_t>(indices), data<Dout>(dout), shape);
  scatter_add_rows_cuda<Table, Dout>(data<Table>(gtable), {data<int64_t>(sorted), data<int64_t>(order)},
                                     data<Dout>(gdout), shape, device::current_stream());
  EXPECT_TRUE(at::equal(gtable.cpu(), table));
}

// Every row more than 32 times. The 32 lanes, a tree of 5 steps over them, and the table round by half a unit each,
// of at most the sum of absolute values. The table's type rounds by half of its own unit; the sum in doubles rounds
// at every step.
template <class Table, class Dout>
void check_long_scatter(const TableShape& shape) {
  const at::Tensor table = values<Table>({shape.rows, shape.width}, 0.7),
                   dout = values<Dout>({shape.count, shape.width}, 0.3),
                   indices = at::arange(shape.count, at::kLong).mul(7919).remainder(shape.rows);
  const at::Tensor gtable = table.to(at::kCUDA), gdout = dout.to(at::kCUDA);
  at::Tensor sorted, order;
  std::tie(sorted, order) = indices.to(at::kCUDA).sort(/*stable=*/true, 0, false);
  scatter_add_rows_cuda<Table, Dout>(data<Table>(gtable), {data<int64_t>(sorted), data<int64_t>(order)},
                                     data<Dout>(gdout), shape, device::current_stream());
  const at::Tensor from = table.to(at::kDouble), rows = dout.to(at::kDouble);
  const at::Tensor exact = from.index_add(0, indices, rows), sizes = from.abs().index_add(0, indices, rows.abs());
  const double times = static_cast<double>(shape.count / shape.rows + 1);
  const double unit = std::is_same_v<Table, double> ? 0x1p-53 : 0x1p-24;
  const double half = !kIsHalf<Table> ? 0 : std::is_same_v<Table, Bf16> ? 0x1p-8 : 0x1p-11;
  const at::Tensor sums = sizes * ((times / 32 + 7) * unit + times * 0x1p-53);
  EXPECT_TRUE(
      ((gtable.cpu().to(at::kDouble) - exact).abs() <= sums + (exact.abs() + sums) * half).all().item<bool>());
}

constexpr TableShape kShapes[] = {{40, 16, 100}, {1000, 257, 3000}, {5, 1, 1}, {64, 768, 0}};

TEST(EmbeddingKernelsCuda, RowsAndTheirGradientsHaveTheBitsOfTheCpu) {
  MPX_NEED_GPU_KERNELS();
  for (const TableShape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows of " << shape.width << ", " << shape.count << " indices");
#define MPX_CHECK_GATHER(T) check_gather<T>(shape, false), check_gather<T>(shape, true)
    MPX_FOR_ELEMENTS(MPX_CHECK_GATHER);
#define MPX_CHECK_SCATTER(Dout, Table) check_scatter<Table, Dout>(shape)
    MPX_FOR_ELEMENT_PAIRS(MPX_CHECK_SCATTER);
  }
}

TEST(EmbeddingKernelsCuda, RowsThatAreDrawnOftenAreSummedInWideParts) {
  MPX_NEED_GPU_KERNELS();
  for (const TableShape& shape : {TableShape{3, 64, 4000}, {1, 768, 8192}, {7, 257, 1000}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows of " << shape.width << ", " << shape.count << " indices");
#define MPX_CHECK_LONG_SCATTER(Dout, Table) check_long_scatter<Table, Dout>(shape)
    MPX_FOR_ELEMENT_PAIRS(MPX_CHECK_LONG_SCATTER);
  }
}

TEST(StorageKernelsCuda, EightBitsAndSplitFloatsHaveTheBitsOfTheCpu) {
  MPX_NEED_GPU_KERNELS();
  for (const int64_t n : {1, 255, 256, 257, 100000}) {
    SCOPED_TRACE(n);
    const at::Tensor x = values<float>({n}, 0.37) * at::arange(n, at::kFloat).remainder(40).sub(30).exp2();
    for (const bool is_signed : {false, true}) {
      const at::Tensor from = is_signed ? x : x.abs();
      const at::Tensor codes = at::zeros({n}, at::kByte), scales = at::zeros({block8_scales(n)}, at::kFloat),
                       back = at::zeros_like(from);
      const at::Tensor gfrom = from.to(at::kCUDA), gcodes = codes.to(at::kCUDA), gscales = scales.to(at::kCUDA),
                       gback = back.to(at::kCUDA);
      block8_encode(data<float>(from), n, is_signed, data<uint8_t>(codes), data<float>(scales));
      block8_decode(data<uint8_t>(codes), data<float>(scales), n, is_signed, data<float>(back));
      block8_encode_cuda(data<float>(gfrom), n, is_signed, data<uint8_t>(gcodes), data<float>(gscales),
                         device::current_stream());
      block8_decode_cuda(data<uint8_t>(gcodes), data<float>(gscales), n, is_signed, data<float>(gback),
                         device::current_stream());
      EXPECT_TRUE(at::equal(gcodes.cpu(), codes));
      EXPECT_TRUE(at::equal(gscales.cpu(), scales));
      EXPECT_TRUE(at::equal(gback.cpu(), back));
    }
    const at::Tensor param = at::zeros({n}, at::kShort), rest = at::zeros({n}, at::kShort), back = at::zeros_like(x);
    const at::Tensor gx = x.to(at::kCUDA), gparam = param.to(at::kCUDA), grest = rest.to(at::kCUDA),
                     gback = back.to(at::kCUDA);
    split_floats(data<float>(x), n, data<uint16_t>(param), data<uint16_t>(rest));
    split_floats_cuda(data<float>(gx), n, data<uint16_t>(gparam), data<uint16_t>(grest), device::current_stream());
    join_floats_cuda(data<uint16_t>(gparam), data<uint16_t>(grest), n, data<float>(gback), device::current_stream());
    EXPECT_TRUE(at::equal(gparam.cpu(), param));
    EXPECT_TRUE(at::equal(grest.cpu(), rest));
    EXPECT_TRUE(at::equal(gback.cpu(), x));
  }
}

}  // namespace
}  // namespace metroplex::kernels::storage_cuda_test
