#include "device/side_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace metroplex::device {
namespace {

c10::impl::VirtualGuardImpl make_guard(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

// Makes `then` wait for the work enqueued on `first`.
void chain(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(first.device_type());
  event.record(first);
  event.block(then);
}

}  // namespace

SideStream::SideStream(at::Device device) : device_(device) {
  if (device.is_cuda()) stream_ = make_guard(device).getStreamFromGlobalPool(device);
}

c10::Stream SideStream::current() const { return make_guard(device_).getStream(device_); }

void SideStream::run(const std::function<void()>& work) const {
  const c10::OptionalStreamGuard guard(stream_);
  work();
}

void SideStream::wait_for_current() const {
  if (stream_) chain(current(), *stream_);
}

void SideStream::current_waits() const {
  if (stream_) chain(*stream_, current());
}

SideStream::Mark SideStream::mark() const {
  Mark mark;
  if (!stream_) return mark;
  mark.event_.emplace(stream_->device_type());
  mark.event_->record(*stream_);
  return mark;
}

void SideStream::Mark::block() const {
  if (!event_) return;
  const at::Device device = event_->device();
  event_->block(make_guard(device).getStream(device));
}

void SideStream::Mark::synchronize() const {
  if (event_) event_->synchronize();
}

}  // namespace metroplex::device
