// Checks that every communication backend must pass; they run with groups of threads and of processes.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "comm/world.h"

namespace metroplex::test {

// Small integers, exact in every type for up to 8 ranks.
inline at::Tensor member_values(int member, at::IntArrayRef shape, at::ScalarType type) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  const at::Tensor x = at::remainder(at::arange(numel, at::kLong) * (member + 1), 5).reshape(shape);
  return type == at::kBool ? x.gt(3) : x.to(type);
}

inline at::Tensor sum_of_members(int size, at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor sum = member_values(0, shape, at::kBool == type ? at::kBool : at::kLong);
  for (int i = 1; i < size; ++i) {
    const at::Tensor x = member_values(i, shape, sum.scalar_type());
    sum = type == at::kBool ? sum.logical_or(x) : sum + x;
  }
  return sum.to(type);
}

inline void check_type(const comm::Group& group, at::ScalarType type) {
  SCOPED_TRACE(c10::toString(type));
  const int size = group.size();
  const std::vector<int64_t> shape{2 * size, 3, size};
  const at::Tensor mine = member_values(group.index(), shape, type);
  const at::Tensor sum = sum_of_members(size, shape, type);

  at::Tensor x = mine.clone();
  comm::all_reduce(x, group);
  EXPECT_TRUE(at::equal(x, sum));
  at::Tensor strided = mine.transpose(0, 2).clone(at::MemoryFormat::Contiguous).transpose(0, 2);
  comm::all_reduce(strided, group);
  EXPECT_TRUE(at::equal(strided, sum));

  at::Tensor best = mine.clone();
  comm::all_reduce(best, group, comm::ReduceOp::max);
  at::Tensor expected = member_values(0, shape, type);
  for (int i = 1; i < size; ++i) expected = at::maximum(expected, member_values(i, shape, type));
  EXPECT_TRUE(at::equal(best, expected));

  for (const int64_t dim : {0, 2, -1}) {
    std::vector<at::Tensor> parts;
    for (int i = 0; i < size; ++i) parts.push_back(member_values(i, shape, type));
    EXPECT_TRUE(at::equal(comm::all_gather(mine, dim, group), at::cat(parts, dim))) << "dim " << dim;
    EXPECT_TRUE(at::equal(comm::reduce_scatter(mine, dim, group), comm::select_shard(sum, dim, group)))
        << "dim " << dim;
  }

  at::Tensor from_last = mine.clone();
  comm::broadcast(from_last, size - 1, group);
  EXPECT_TRUE(at::equal(from_last, member_values(size - 1, shape, type)));
}

// Member i sends (i + j) % 3 rows to member j, so some pairs exchange no rows.
inline void check_all_to_all(const comm::Group& group) {
  const int size = group.size();
  if (size == 1) return;
  const int me = group.index();
  std::vector<int64_t> in_splits, out_splits;
  std::vector<at::Tensor> in, expected;
  for (int j = 0; j < size; ++j) {
    in_splits.push_back((me + j) % 3);
    out_splits.push_back((j + me) % 3);
    in.push_back(at::full({in_splits.back(), 2}, 100.0 * me + j, at::kDouble));
    expected.push_back(at::full({out_splits.back(), 2}, 100.0 * j + me, at::kDouble));
  }
  EXPECT_TRUE(at::equal(comm::all_to_all(at::cat(in), out_splits, in_splits, group), at::cat(expected)));
}

inline void check_collectives(const comm::Group& group) {
  for (const auto type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte, at::kBool})
    check_type(group, type);
  check_all_to_all(group);
  at::Tensor nothing = at::empty({0, 4});
  comm::all_reduce(nothing, group);
  EXPECT_EQ(comm::all_gather(nothing, 0, group).size(0), 0);
  EXPECT_EQ(comm::reduce_scatter(nothing, 0, group).size(0), 0);
  std::string mine(static_cast<size_t>(group.index()) * 3, 'x');
  const std::vector<std::string> all = comm::all_gather_strings(mine, group);
  ASSERT_EQ(all.size(), static_cast<size_t>(group.size()));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], std::string(3 * i, 'x'));
  comm::barrier(group);
}

// The bits of these fp32 sums depend on the order. Both reductions must return ((a0 + a1) + a2) + ... on every rank.
inline void check_sum_order(const comm::Group& group) {
  const auto values = [](int member) {
    return at::sin(at::arange(4000, at::kFloat) * (member + 1.7)) * (member == 1 ? 1e4 : 1.0);
  };
  at::Tensor expected = values(0);
  for (int i = 1; i < group.size(); ++i) expected = expected + values(i);
  at::Tensor x = values(group.index());
  comm::all_reduce(x, group);
  EXPECT_TRUE(at::equal(x, expected));
  const at::Tensor whole = values(group.index()).narrow(0, 0, 4000 / group.size() * group.size());
  EXPECT_TRUE(at::equal(comm::reduce_scatter(whole, 0, group),
                        comm::select_shard(expected.narrow(0, 0, whole.size(0)), 0, group)));
}

// A size that is no power of two and is above every threshold for splitting a message.
inline void check_large(const comm::Group& group) {
  const int64_t numel = 200003;
  at::Tensor x = at::arange(numel, at::kFloat) + group.index();
  comm::Handle handle = comm::all_reduce_async(x, group);
  at::Tensor y = at::full({numel}, 1.0 + group.index(), at::kDouble);
  comm::Handle other = comm::all_reduce_async(y, group);
  other.wait();
  handle.wait();
  const double n = group.size();
  EXPECT_TRUE(at::equal(y, at::full({numel}, n * (n + 1) / 2, at::kDouble)));
  EXPECT_TRUE(at::equal(x, at::arange(numel, at::kFloat) * n + n * (n - 1) / 2));
}

inline void check_in_place(const comm::Group& group) {
  const int n = group.size();
  const at::Tensor buffer = at::zeros({n, 5});
  buffer[group.index()].fill_(group.index() + 1);
  comm::all_gather_into_async(buffer, buffer[group.index()], group).wait();
  const at::Tensor gathered = at::arange(1, n + 1, at::kFloat).unsqueeze(1).expand({n, 5});
  EXPECT_TRUE(at::equal(buffer, gathered));
  comm::reduce_scatter_into_async(buffer[group.index()], buffer, group).wait();
  EXPECT_TRUE(at::equal(buffer[group.index()], gathered[group.index()] * n));
}

// Two data-parallel ranks use two groups with equal members and name but different purpose. The ranks issue the two
// all-reduces in opposite order, which must not deadlock or mix the results. Neither purpose has an existing group
// whose communicator could be reused.
inline void check_two_purposes(const comm::World& world) {
  const comm::Group rows = world.make_group({"both", comm::Purpose::experts, {0, 1}});
  const comm::Group sums = world.make_group({"both", comm::Purpose::layers, {0, 1}});
  const at::Tensor first = at::full({2}, 1.0), second = at::full({2}, 10.0);
  comm::Handle on_rows, on_sums;
  if (world.rank() == 0) on_rows = comm::all_reduce_async(first, rows);
  on_sums = comm::all_reduce_async(second, sums);
  if (world.rank() == 1) on_rows = comm::all_reduce_async(first, rows);
  on_rows.wait();
  on_sums.wait();
  EXPECT_TRUE(at::equal(first, at::full({2}, 2.0)));
  EXPECT_TRUE(at::equal(second, at::full({2}, 20.0)));
}

}  // namespace metroplex::test
