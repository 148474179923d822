#include "comm/backends/nvshmem.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"

namespace metroplex::comm {
namespace {

constexpr const char* kOperator = "symm_mem::all_to_all_vdev_2d_offset";

c10::OperatorHandle exchange_operator() {
  const auto found = c10::Dispatcher::singleton().findSchema({kOperator, ""});
  MPX_CHECK(found && found->hasKernelForDispatchKey(c10::DispatchKey::CUDA), "comm", "this libtorch has no ",
            kOperator, " for GPUs; use model.moe_static_buffer_exchange = equal_capacity");
  return *found;
}

std::vector<int64_t> row_major_strides(at::IntArrayRef shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// libtorch initializes NVSHMEM with the group of this name, which is the world.
constexpr const char* kWorld = "0";

void start(const NvshmemGroup& group) {
  static std::once_flag once;
  std::call_once(once, [&] {
    c10d::symmetric_memory::set_backend("NVSHMEM");
    c10d::symmetric_memory::set_group_info(kWorld, group.rank, group.world_size,
                                           c10::make_intrusive<c10d::PrefixStore>("nvshmem/world", group.store));
  });
  c10d::symmetric_memory::set_group_info(group.key, group.index, group.size,
                                         c10::make_intrusive<c10d::PrefixStore>("nvshmem/" + group.key, group.store));
}

}  // namespace

SymmetricRows::Calls with_nvshmem(SymmetricRows::Calls calls, const NvshmemGroup& group) {
  MPX_ASSERT(group.size == group.world_size, "NVSHMEM for ", group.size, " of ", group.world_size, " ranks");
  const c10::OperatorHandle exchange = exchange_operator();
  start(group);
  calls.allocate = [key = group.key, device = group.device](at::IntArrayRef shape, at::ScalarType dtype) {
    const at::Tensor memory =
        c10d::symmetric_memory::empty_strided_p2p(shape, row_major_strides(shape), dtype, device, key, std::nullopt);
    c10d::symmetric_memory::rendezvous(memory, key);
    return memory;
  };
  calls.exchange = [key = group.key, exchange](at::Tensor& in, at::Tensor& out, at::Tensor& in_splits,
                                               at::Tensor& out_splits) {
    torch::jit::Stack stack{in, out, in_splits, out_splits, key};
    exchange.callBoxed(stack);
  };
  return calls;
}

}  // namespace metroplex::comm
