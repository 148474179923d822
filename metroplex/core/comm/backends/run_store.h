// The rendezvous store of a run whose launcher serves none. Rank 0 serves it. A client proves that it holds the run's
// secret (watch_link.h) before it may send a request, and the server proves it to the client. Without a secret
// (METROPLEX_SECRET) any client can connect. Each message is a list of fields with four-byte lengths.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/backends/watch_link.h"
#include "comm/sockets.h"

namespace metroplex::comm {

std::vector<uint8_t> as_bytes(const std::string& text);

inline double in_seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// A client that exceeds `bytes` or `message` is dropped.
struct StoreLimits {
  size_t bytes = 0;    // keys and values, with kKeyBytes more for each key
  size_t message = 0;  // bytes of a request
  size_t members = 0;  // clients that may stay after startup; during startup kSpareClients more are admitted
};

class StoreServer {
 public:
  static constexpr size_t kKeyBytes = 256, kSpareClients = 8;

  // Takes ownership of the listening socket.
  StoreServer(OwnedFd listening, std::string secret, const StoreLimits& limits);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Accepts no new connections after it returns. Connections whose clients called stay() continue.
  void close_port();
  // "; 2 connections were refused ...": why clients were not admitted; empty if all were.
  std::string problems();

 private:
  void work();
  void wake() const;
  void drop(int fd);
  void close_connections(bool port_closes);
  void accept();
  bool serve(int fd, WatchLink& link, bool readable);
  bool handle(WatchLink& link, const WatchMessage& message);
  bool admit(WatchLink& link, const WatchMessage& message);
  bool refuse(WatchLink& link, const std::string& cause);
  bool mark_staying(WatchLink& link);
  // Returns nullopt for an invalid request.
  std::optional<std::vector<std::string>> answer(const WatchMessage& request);
  bool store(const std::string& key, const std::string& value);

  const std::string secret_;
  const StoreLimits limits_;
  const int listening_fd_;
  OwnedFd wake_fd_;
  std::mutex mutex_;  // guards the members up to lacked_files_
  bool closing_ = false, port_closes_ = false;
  int num_other_secrets_ = 0, num_too_many_ = 0;
  std::string other_secret_address_;  // the last such address
  bool lacked_files_ = false;
  // Only the serving thread uses these.
  LinkPort port_;
  WatchLinks links_;
  std::map<std::string, std::string> values_;
  size_t bytes_ = 0;
  bool busy_ = false;  // a received message may wait for the next loop iteration
  std::thread thread_;
};

// A call throws c10::DistNetworkError if the server has closed the connection or does not answer within kSilence
// ("Socket Timeout").
class StoreClient final : public c10d::Store {
 public:
  // Connects within `patience` and proves the secret within `answer_limit`. Reconnects if the server closes the
  // connection without an answer. Throws base::Error("comm").
  struct Address {
    std::string host;
    uint16_t port = 0;
    std::string secret;
    std::chrono::milliseconds patience, answer_limit;
  };
  explicit StoreClient(const Address& address);
  // The connection continues after StoreServer::close_port.
  void stay();

  c10::intrusive_ptr<c10d::Store> clone() override;  // shares the connection
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  // Waits for the key like wait().
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  // Polls. Throws c10::DistStoreError at the timeout.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  using Clock = std::chrono::steady_clock;
  bool prove_secret(const Address& address, Clock::time_point end, bool first);
  std::vector<std::string> call(char kind, const std::vector<std::string>& fields);
  void send_all(const std::string& bytes, Clock::time_point end);
  WatchMessage receive(Clock::time_point end);

  std::mutex mutex_;
  OwnedFd fd_;
  WatchLink link_;
};

}  // namespace metroplex::comm
