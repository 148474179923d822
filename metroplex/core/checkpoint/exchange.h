// Communication between the ranks that write or read one checkpoint: short texts to rank 0 and back. The caller
// implements it with its collectives. Every rank makes the same calls in the same order.
#pragma once

#include <string>
#include <vector>

namespace metroplex::checkpoint {

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns all texts by rank on rank 0, and an empty list elsewhere. Throws if a peer is lost.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Returns rank 0's text on every rank. No rank returns before rank 0 has called.
  virtual std::string broadcast(const std::string& text) = 0;
};

class Alone final : public Exchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  std::string broadcast(const std::string& text) override { return text; }
};

}  // namespace metroplex::checkpoint
