#include "cuda/meta_meter.h"

#include <c10/core/Allocator.h>

#include "base/error.h"

namespace metroplex::cuda {
namespace {

thread_local MetaMemory::Listener* t_listener = nullptr;

// A block is its size: the context that c10 hands to the deleter, one more than the bytes because null has none.
void* block_of(size_t bytes) { return reinterpret_cast<void*>(bytes + 1); }

void tell_freed(void* block) {
  const auto bytes = static_cast<int64_t>(reinterpret_cast<size_t>(block) - 1);
  if (t_listener != nullptr && bytes > 0) t_listener->freed(bytes);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (t_listener != nullptr && bytes > 0) t_listener->allocated(static_cast<int64_t>(bytes));
    return {nullptr, block_of(bytes), &tell_freed, c10::Device(c10::DeviceType::Meta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &tell_freed; }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}
};

void install() {
  static CountingAllocator* const ours = [] {  // never destroyed: tensors may outlive whatever is static
    auto* const allocator = new CountingAllocator;
    c10::SetAllocator(c10::DeviceType::Meta, allocator, /*priority=*/1);
    return allocator;
  }();
  MPX_ASSERT(c10::GetAllocator(c10::DeviceType::Meta) == ours, "another allocator of meta tensors has taken its place");
}

}  // namespace

MetaMemory::MetaMemory(Listener& listener) {
  install();
  MPX_ASSERT(t_listener == nullptr, "a second listener to meta memory on one thread");
  t_listener = &listener;
}

MetaMemory::~MetaMemory() { t_listener = nullptr; }

}  // namespace metroplex::cuda
