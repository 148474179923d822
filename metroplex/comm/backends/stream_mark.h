// A point on the current stream of a tensor's device that other streams can wait for; nothing on the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace metroplex::comm {

class StreamMark {
 public:
  void record(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return;
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    event_.emplace(tensor.device().type());
    event_->record(device.getStream(tensor.device()));
  }
  // The current stream of `tensor`'s device goes on only when the mark has been passed.
  void block(const at::Tensor& tensor) const {
    if (!event_) return;
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    event_->block(device.getStream(tensor.device()));
  }

 private:
  std::optional<c10::Event> event_;
};

}  // namespace metroplex::comm
