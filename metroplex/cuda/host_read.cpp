#include "cuda/host_read.h"

#include <ATen/ops/empty.h>

#include "base/error.h"

namespace metroplex::cuda {

at::Tensor read_on_host(const Target& target, const at::Tensor& x) {
  MPX_ASSERT(!target.meta, "the host asks for values of the meta device");
  const at::Tensor host = at::empty(x.sizes(), at::TensorOptions().dtype(x.scalar_type()));
  launch(
      target, {"read_on_host", {&x}, {&host}}, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); },
      [](const at::Tensor& from, const at::Tensor& to, CUstream_st*) { to.copy_(from); }, x, host);
  return host;
}

// Pinned, or the copy would be waited for.
void write_from_host(const Target& target, const at::Tensor& x, const at::Tensor& host) {
  const bool waits = target.gpu() && !target.meta;
  x.copy_(waits ? host.pin_memory() : host, /*non_blocking=*/true);
}

}  // namespace metroplex::cuda
