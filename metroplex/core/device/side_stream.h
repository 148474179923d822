// A GPU stream in addition to the current one, for copies that computation does not wait for. On the CPU and the meta
// device work runs immediately, and waits are no-ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace metroplex::device {

class SideStream {
 public:
  explicit SideStream(at::Device device);

  // Enqueues the work of `work` on this stream.
  void run(const std::function<void()>& work) const;
  // wait_for_current: this stream waits for the work enqueued on the current one. current_waits: the reverse.
  void wait_for_current() const;
  void current_waits() const;

  // A point on this stream. block(): the current stream waits for it; synchronize(): the host waits for it.
  class Mark {
   public:
    void block() const;
    void synchronize() const;

   private:
    friend class SideStream;
    std::optional<c10::Event> event_;
  };
  Mark mark() const;

 private:
  c10::Stream current() const;

  at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace metroplex::device
