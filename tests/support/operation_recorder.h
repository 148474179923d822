// A recorder that stores every operation with the values that it read and wrote, and can replay each operation alone.
// A replay restores only the recorded reads, fills all other known memory with a pattern, and checks that only the
// recorded writes change.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "device/launch_point.h"

namespace metroplex::test {

class OperationRecorder final : public device::Recorder {
 public:
  struct Kept {
    device::Operation operation;
    std::vector<at::Tensor> reads, results;  // copies of the values read and written
    std::vector<at::Tensor> scratch{};       // memory excluded from the operation's writes
  };

  void run(device::Operation operation) override {
    Kept kept{operation, copies(operation.reads), {}};
    kept.operation.run();
    std::vector<at::Tensor>& writes = kept.operation.writes;
    const auto results = writes.end() - static_cast<std::ptrdiff_t>(kept.operation.scratch);
    kept.scratch.assign(results, writes.end());
    writes.erase(results, writes.end());
    if (!starts(kept.operation)) kept.results = copies(kept.operation.writes);
    operations_.push_back(std::move(kept));
  }

  const std::vector<Kept>& operations() const { return operations_; }
  std::set<std::string> kernels() const {
    std::set<std::string> names;
    for (const Kept& kept : operations_) {
      if (kept.operation.group.empty()) names.insert(kept.operation.name);
    }
    return names;
  }
  // Number of collective calls by name, without "wait".
  std::map<std::string, int64_t> calls() const {
    std::map<std::string, int64_t> counts;
    for (const Kept& kept : operations_) {
      if (!kept.operation.group.empty() && kept.operation.name != "wait") ++counts[kept.operation.name];
    }
    return counts;
  }

  void replay() const {
    for (const Kept& kept : operations_) kept.operation.run();
  }

  // Collective over all members of the groups. Destroys the values of all recorded tensors.
  void run_each_alone() {
    for (size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i].operation.name != "wait") run_alone(i);
    }
  }

 private:
  static constexpr uint8_t kAtRest = 0x5A;

  static bool starts(const device::Operation& o) {
    return !o.group.empty() && o.name != "wait" && o.name != "barrier";
  }
  static std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& tensor : tensors) all.push_back(tensor.clone(at::MemoryFormat::Contiguous));
    return all;
  }
  static bool same_bits(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor left = a.contiguous(), right = b.contiguous();
    return left.nbytes() == right.nbytes() &&
           (left.nbytes() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
  }
  static bool at_rest(const at::Tensor& bytes) {
    const auto* const data = bytes.const_data_ptr<uint8_t>();
    return data[0] == kAtRest && std::memcmp(data, data + 1, bytes.nbytes() - 1) == 0;
  }
  // The "wait" of the call at index `start`: the next one with the same group and writes.
  const Kept& wait_of(size_t start) const {
    for (size_t i = start + 1; i < operations_.size(); ++i) {
      const device::Operation &o = operations_[i].operation, &call = operations_[start].operation;
      if (o.name == "wait" && o.group == call.group && o.writes.size() == call.writes.size() &&
          std::equal(o.writes.begin(), o.writes.end(), call.writes.begin(),
                     [](const auto& a, const auto& b) { return a.const_data_ptr() == b.const_data_ptr(); }))
        return operations_[i];
    }
    ADD_FAILURE() << operations_[start].operation.name << " is not waited for";
    return operations_[start];
  }
  std::map<const void*, at::Tensor> memory() const {
    std::map<const void*, at::Tensor> all;
    for (const Kept& kept : operations_) {
      for (const auto* tensors : {&kept.operation.reads, &kept.operation.writes}) {
        for (const at::Tensor& tensor : *tensors) {
          const at::Storage& storage = tensor.storage();
          if (storage.nbytes() > 0)
            all[storage.data()] =
                at::from_blob(const_cast<void*>(storage.data()), {static_cast<int64_t>(storage.nbytes())}, at::kByte);
        }
      }
    }
    return all;
  }

  void run_alone(size_t i) {
    const Kept& kept = operations_[i];
    const device::Operation& o = kept.operation;
    SCOPED_TRACE(testing::Message() << "operation " << i << ": " << o.name << " " << o.group);
    if (memory_.empty()) {
      memory_ = memory();
      for (auto& [where, bytes] : memory_) bytes.fill_(kAtRest);
    }
    for (size_t r = 0; r < o.reads.size(); ++r) at::Tensor(o.reads[r]).copy_(kept.reads[r]);
    std::map<const void*, at::Tensor> before;  // storages of this operation before the run; all others hold kAtRest
    for (const auto* tensors : {&o.reads, &o.writes}) {
      for (const at::Tensor& tensor : *tensors) {
        const auto own = memory_.find(tensor.storage().data());
        if (own != memory_.end()) before[own->first] = own->second.clone();
      }
    }
    const std::vector<at::Tensor> unwritten = copies(o.writes);
    o.run();
    const Kept& end = starts(o) ? wait_of(i) : kept;
    if (starts(o)) end.operation.run();
    for (size_t w = 0; w < o.writes.size(); ++w) {
      EXPECT_TRUE(same_bits(o.writes[w], end.results.at(w))) << "result " << w << " is another one";
      at::Tensor(o.writes[w]).copy_(unwritten[w]);
    }
    for (auto& [where, bytes] : memory_) {
      const auto own = before.find(where);
      EXPECT_TRUE(own == before.end() ? at_rest(bytes) : same_bits(bytes, own->second))
          << "wrote to what is not among its writes";
      if (own != before.end()) bytes.fill_(kAtRest);
    }
  }

  std::vector<Kept> operations_;
  std::map<const void*, at::Tensor> memory_;
};

}  // namespace metroplex::test
