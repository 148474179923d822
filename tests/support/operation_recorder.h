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
  struct Recorded {
    device::Operation operation;
    std::vector<at::Tensor> reads, results;  // copies of the values read and written
    std::vector<at::Tensor> scratch{};       // memory excluded from the operation's writes
  };

  void run(device::Operation operation) override {
    Recorded recorded{operation, copies(operation.reads), {}};
    recorded.operation.run();
    std::vector<at::Tensor>& writes = recorded.operation.writes;
    const auto results = writes.end() - static_cast<std::ptrdiff_t>(recorded.operation.scratch);
    recorded.scratch.assign(results, writes.end());
    writes.erase(results, writes.end());
    if (!starts(recorded.operation)) recorded.results = copies(recorded.operation.writes);
    operations_.push_back(std::move(recorded));
  }

  const std::vector<Recorded>& operations() const { return operations_; }
  std::set<std::string> kernels() const {
    std::set<std::string> names;
    for (const Recorded& recorded : operations_) {
      if (recorded.operation.group.empty()) names.insert(recorded.operation.name);
    }
    return names;
  }
  // Number of collective calls by name, without "wait".
  std::map<std::string, int64_t> calls() const {
    std::map<std::string, int64_t> counts;
    for (const Recorded& recorded : operations_) {
      if (!recorded.operation.group.empty() && recorded.operation.name != "wait") ++counts[recorded.operation.name];
    }
    return counts;
  }

  void replay() const {
    for (const Recorded& recorded : operations_) recorded.operation.run();
  }

  // Collective over all members of the groups. Destroys the values of all recorded tensors.
  void run_each_alone() {
    for (size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i].operation.name != "wait") run_alone(i);
    }
  }

 private:
  static constexpr uint8_t kUntouched = 0x5A;

  static bool starts(const device::Operation& operation) {
    return !operation.group.empty() && operation.name != "wait" && operation.name != "barrier";
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
  static bool is_untouched(const at::Tensor& bytes) {
    const auto* const data = bytes.const_data_ptr<uint8_t>();
    return data[0] == kUntouched && std::memcmp(data, data + 1, bytes.nbytes() - 1) == 0;
  }
  // The "wait" of the call at index `start`: the next one with the same group and writes.
  const Recorded& find_wait(size_t start) const {
    for (size_t i = start + 1; i < operations_.size(); ++i) {
      const device::Operation &operation = operations_[i].operation, &call = operations_[start].operation;
      if (operation.name == "wait" && operation.group == call.group &&
          operation.writes.size() == call.writes.size() &&
          std::equal(operation.writes.begin(), operation.writes.end(), call.writes.begin(),
                     [](const auto& a, const auto& b) { return a.const_data_ptr() == b.const_data_ptr(); }))
        return operations_[i];
    }
    ADD_FAILURE() << operations_[start].operation.name << " is not waited for";
    return operations_[start];
  }
  std::map<const void*, at::Tensor> memory() const {
    std::map<const void*, at::Tensor> all;
    for (const Recorded& recorded : operations_) {
      for (const auto* tensors : {&recorded.operation.reads, &recorded.operation.writes}) {
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
    const Recorded& recorded = operations_[i];
    const device::Operation& operation = recorded.operation;
    SCOPED_TRACE(testing::Message() << "operation " << i << ": " << operation.name << " " << operation.group);
    if (memory_.empty()) {
      memory_ = memory();
      for (auto& [where, bytes] : memory_) bytes.fill_(kUntouched);
    }
    for (size_t r = 0; r < operation.reads.size(); ++r) at::Tensor(operation.reads[r]).copy_(recorded.reads[r]);
    std::map<const void*, at::Tensor>
        before;  // storages of this operation before the run; all others hold kUntouched
    for (const auto* tensors : {&operation.reads, &operation.writes}) {
      for (const at::Tensor& tensor : *tensors) {
        const auto own = memory_.find(tensor.storage().data());
        if (own != memory_.end()) before[own->first] = own->second.clone();
      }
    }
    const std::vector<at::Tensor> unwritten = copies(operation.writes);
    operation.run();
    const Recorded& end = starts(operation) ? find_wait(i) : recorded;
    if (starts(operation)) end.operation.run();
    for (size_t w = 0; w < operation.writes.size(); ++w) {
      EXPECT_TRUE(same_bits(operation.writes[w], end.results.at(w))) << "result " << w << " is another one";
      at::Tensor(operation.writes[w]).copy_(unwritten[w]);
    }
    for (auto& [where, bytes] : memory_) {
      const auto own = before.find(where);
      EXPECT_TRUE(own == before.end() ? is_untouched(bytes) : same_bits(bytes, own->second))
          << "wrote to what is not among its writes";
      if (own != before.end()) bytes.fill_(kUntouched);
    }
  }

  std::vector<Recorded> operations_;
  std::map<const void*, at::Tensor> memory_;
};

}  // namespace metroplex::test
