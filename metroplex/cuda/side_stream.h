// A stream beside the current one of a GPU, for copies that computation need not wait for. On the CPU and the meta
// device there is no such thing: what is run on it is done at once, and waiting is nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace metroplex::cuda {

class SideStream {
 public:
  explicit SideStream(at::Device device);

  // What `work` enqueues goes to this stream, behind what it has already.
  void run(const std::function<void()>& work) const;
  // This stream goes on when the current one has come to where it is now; and the other way round.
  void wait_for_current() const;
  void current_waits() const;

  // A point on this stream. block(): the current stream waits for it; synchronize(): the host does.
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

}  // namespace metroplex::cuda
