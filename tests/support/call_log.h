// Logs the names and shapes of the operations that a recorder receives.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "device/launch_point.h"

namespace metroplex::test {

struct RecordedCall {
  std::string name, group;  // empty: a kernel
  std::vector<std::vector<int64_t>> reads, writes;
  bool operator==(const RecordedCall&) const = default;
};

struct CallLog final : device::Recorder {
  std::vector<RecordedCall> calls;
  void run(device::Operation operation) override {
    operation.run();
    RecordedCall call{operation.name, operation.group, {}, {}};
    for (const at::Tensor& x : operation.reads) call.reads.push_back(x.sizes().vec());
    for (const at::Tensor& x : operation.writes) call.writes.push_back(x.sizes().vec());
    calls.push_back(std::move(call));
  }
  std::vector<RecordedCall> kernels() const {
    std::vector<RecordedCall> all;
    std::copy_if(calls.begin(), calls.end(), std::back_inserter(all),
                 [](const RecordedCall& call) { return call.group.empty(); });
    return all;
  }
};

}  // namespace metroplex::test
