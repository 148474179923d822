#include "comm/backends/gloo_state.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/backends/run_store_messages.h"
#include "comm/network.h"

namespace metroplex::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr const char* kArrivedCount = "come";  // number of ranks that have joined, each after setting its arrival_key
constexpr const char* kWorldSize = "world size";  // from the first rank that joined, with its rank and machine
constexpr const char* kBackend = "backend";       // from the first rank that joined
constexpr const char* kDecision = "decision";     // kAllArrived, kRefused, kMiscounted or kMissing, and the cause
constexpr const char* kRefusalReads = "gone";     // number of ranks that have read a refusal
constexpr const char* kJoined = "joined";         // number of ranks that are connected to all others
constexpr const char* kSecret = "secret";
constexpr char kAllArrived = 'c', kRefused = 'r', kMiscounted = 'm', kMissing = 'x';
// kTrialTimeout: how long the store stays open for ranks that have not read a refusal. kMiscountPatience: the same
// after a wrong number of processes, counted from the latest rank.
constexpr Milliseconds kTrialTimeout{20000}, kMiscountPatience{1500};
// Time for a store that accepts connections to answer the first call. c10d repeats this call until its own, shorter
// timeout.
constexpr std::chrono::seconds kFirstAnswer{15}, kFirstTimeout{14};
// Time limit for resolving the master's name.
constexpr Milliseconds kNamePatience{10000};

std::string arrival_key(int rank) { return "come/" + std::to_string(rank); }

// Polls, because a wait inside the store has no limit if rank 0 is stopped.
template <class Condition>
bool poll_until(Clock::time_point end, const Condition& condition) {
  for (Milliseconds pause{2}; !condition(); pause = std::min(2 * pause, Milliseconds(500))) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

// The store's port accepts no connections after startup, so `clone()` shares the connection.
class OneConnectionStore final : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
};

bool serves_store(const GlooOptions& options) { return options.rank == 0 && !options.agent_store; }

std::string process_location(const std::string& address) {
  return base::concat(host_name(), is_loopback(address) ? "" : " (" + address + ")", ", process ", ::getpid());
}

// Returns the first decision of any rank, which is final.
std::string decide(c10d::Store& store, char kind, const std::string& cause) {
  const std::vector<uint8_t> first = store.compareSet(kDecision, {}, as_bytes(kind + cause));
  return {first.begin(), first.end()};
}

std::vector<int> missing_ranks(c10d::Store& store, const GlooOptions& options) {
  std::vector<int> missing;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (!store.check({arrival_key(rank)})) missing.push_back(rank);
  }
  return missing;
}

// The store ends with rank 0, so rank 0 waits for the other ranks; with kMissing only for those that have joined.
void leave_refused(c10d::Store& store, const GlooOptions& options, char kind) {
  try {
    int64_t num_read = store.add(kRefusalReads, 1);
    if (!serves_store(options)) return;
    const auto missing = kind == kMissing ? missing_ranks(store, options).size() : 0;
    const auto readers = options.world_size - static_cast<int64_t>(missing);
    auto changed = Clock::now();
    poll_until(Clock::now() + std::min(options.timeout, kTrialTimeout), [&] {
      const int64_t now_read = store.add(kRefusalReads, 0);
      if (now_read != num_read) changed = Clock::now();
      num_read = now_read;
      return num_read >= readers || (kind == kMiscounted && Clock::now() - changed > kMiscountPatience);
    });
  } catch (const c10::DistError&) {
    // The store has ended.
  }
}

void decide_refusal(c10d::Store& store, const GlooOptions& options, char kind, const std::string& cause) {
  try {
    decide(store, kind, cause);
  } catch (const c10::DistError&) {
    // The store has ended.
  }
  leave_refused(store, options, kind);
}

// Returns the first value of `key`.
std::string claim(c10d::Store& store, const std::string& key, const std::string& value) {
  const std::vector<uint8_t> first = store.compareSet(key, {}, as_bytes(value));
  return {first.begin(), first.end()};
}

[[noreturn]] void refuse_miscounted(c10d::Store& store, const GlooOptions& options, const std::string& problem) {
  decide_refusal(store, options, kMiscounted, problem);
  throw base::Error("comm", problem);
}

// Refuses for all ranks if the processes were not started in one world.
void check_world_size(c10d::Store& store, const GlooOptions& options, const std::string& location) {
  const std::string world =
      claim(store, kWorldSize, base::concat(options.world_size, " rank ", options.rank, " on ", location));
  const size_t space = world.find(' ');
  if (space == std::string::npos || world.substr(0, space) == std::to_string(options.world_size)) return;
  refuse_miscounted(store, options,
                    base::concat("rank ", options.rank, " on ", location, " was started with a world size of ",
                                 options.world_size, ", ", world.substr(space + 1), " with ", world.substr(0, space),
                                 "; give all processes the same world size"));
}

// Refuses for all ranks if another process was started as this rank.
void claim_rank(c10d::Store& store, const GlooOptions& options, const std::string& location) {
  const std::string own_value = location + ", " + random_secret();
  const std::string owner = claim(store, arrival_key(options.rank), own_value);
  if (owner == own_value) return;
  refuse_miscounted(
      store, options,
      base::concat("two processes were started as rank ", options.rank, " of ", options.world_size, ": on ",
                   owner.substr(0, owner.rfind(',')), ", and on ", location, "; give each its own rank"));
}

void check_backend(c10d::Store& store, const GlooOptions& options) {
  const std::string own_value = options.full_mesh ? "gloo" : "nccl";
  const std::vector<uint8_t> bytes = store.compareSet(kBackend, {}, as_bytes(own_value));
  const std::string first(bytes.begin(), bytes.end());
  if (own_value == first) return;
  const std::string problem = base::concat("this rank uses the backend ", own_value, ", another one uses ", first,
                                           "; set run.backend and run.device, or give each rank of all machines a "
                                           "GPU");
  refuse(store, options, "[config] " + problem);
  throw base::Error("config", problem);
}

std::string list_ranks(const std::vector<int>& ranks, const GlooOptions& options) {
  constexpr size_t kMaxNamed = 8;
  std::string names;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxNamed); ++i)
    names += (names.empty() ? "" : ", ") + options.rank_name(ranks[i]);
  return ranks.size() > kMaxNamed ? base::concat(names, " and ", ranks.size() - kMaxNamed, " more") : names;
}

// Runs at the timeout. A rank that has set its key may be stopped before it counts itself. It is not missing.
std::string decide_at_timeout(c10d::Store& store, const GlooOptions& options, const std::string& problems) {
  const std::vector<int> missing = missing_ranks(store, options);
  if (missing.empty()) return decide(store, kAllArrived, "");
  const std::string cause = base::concat(list_ranks(missing, options), " did not start within ",
                                         in_seconds(options.timeout), " s", problems);
  const std::string decision = decide(store, kMissing, cause);
  if (decision != kMissing + cause) return decision;
  leave_refused(store, options, kMissing);
  throw base::Error("comm", cause);
}

c10::intrusive_ptr<StoreClient> connect_to_rank_0(const GlooOptions& options) {
  auto client = c10::make_intrusive<StoreClient>(
      StoreClient::Address{options.master_addr, options.master_port, options.secret, options.timeout, kFirstAnswer});
  client->setTimeout(options.timeout);
  return client;
}

// Suppresses the log of failed connection attempts in c10d, which includes a backtrace for each.
class QuietLibrary {
 public:
  QuietLibrary() : before_(std::exchange(FLAGS_caffe2_log_level, c10::GLOG_FATAL)) {}
  ~QuietLibrary() { FLAGS_caffe2_log_level = before_; }
  QuietLibrary(const QuietLibrary&) = delete;
  QuietLibrary& operator=(const QuietLibrary&) = delete;

 private:
  int before_;
};

// Checks the connection first: c10d's own attempts may take twice its timeout.
c10::intrusive_ptr<c10d::Store> connect_to_agent(const GlooOptions& options) {
  const std::string where = options.master_addr + ":" + std::to_string(options.master_port);
  std::string error;
  const OwnedFd reached(connect_by_name(options.master_addr, options.master_port, options.timeout, error));
  MPX_CHECK(reached.get() >= 0, "comm", "no connection to the store of the launcher's agent at ", where, " within ",
            in_seconds(options.timeout), " s: ", error);
  try {
    const QuietLibrary quiet;
    const CallLimit limit(options.master_port, kFirstAnswer);
    c10d::TCPStoreOptions store;
    store.port = options.master_port;
    store.waitWorkers = false;
    store.timeout = kFirstTimeout;
    auto connected = c10::make_intrusive<c10d::TCPStore>(options.master_addr, store);
    limit_calls(options.master_port, kSilence);
    connected->setTimeout(options.timeout);
    return connected;
  } catch (const std::exception&) {
    throw base::Error("comm", base::concat("MASTER_PORT = ", options.master_port, ": ", where,
                                           " accepts connections but does not answer as a rendezvous store; the "
                                           "launcher's agent is stopped, or another program has the port (",
                                           failure_cause(std::current_exception()).substr(0, 300), ")"));
  }
}

// gloo stores one value per rank: the addresses of all its connections, up to 200 bytes each.
StoreLimits limits_for(int world_size) {
  const auto ranks = static_cast<size_t>(world_size);
  return {.bytes = (64 << 20) + 1024 * ranks * ranks,
          .message = std::min<size_t>(kMaxStoreMessage, (1 << 20) + 1024 * ranks),
          .members = ranks};
}

}  // namespace

std::optional<std::string> look_up(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  const std::vector<uint8_t> bytes = store.get(key);
  return std::string(bytes.begin(), bytes.end());
}

void throw_store_failure(const GlooOptions& options) {
  const std::string error = failure_cause(std::current_exception());
  const std::string who = options.agent_store ? "the launcher's agent" : options.rank_name(0);
  const bool silent = error.find("Socket Timeout") != std::string::npos;
  throw PeerFailure(base::concat(who,
                                 silent ? base::concat(" has not answered for ", kSilence.count(), " s") : " ended",
                                 " while ranks were starting"));
}

RunStore open_store(const GlooOptions& options) {
  const std::string unknown = resolve_error(options.master_addr, std::min(options.timeout, kNamePatience));
  MPX_CHECK(unknown.empty(), "comm", "the master's name '", options.master_addr, "' cannot be resolved: ", unknown,
            "; check MASTER_ADDR (or the first host of Slurm's list), or give a numeric address");
  RunStore run;
  if (serves_store(options)) {
    const int fd = options.listen_fd >= 0
                       ? options.listen_fd
                       : listen_at_name(options.master_addr, options.master_port, options.other_machines);
    run.server = std::make_unique<StoreServer>(OwnedFd(fd), options.secret, limits_for(options.world_size));
  }
  // The store of an agent outlives an attempt, so the attempt is part of the prefix.
  if (!options.agent_store) run.client = connect_to_rank_0(options);
  run.store = c10::make_intrusive<OneConnectionStore>(
      base::concat("metroplex/attempt_", options.attempt),
      options.agent_store ? connect_to_agent(options) : c10::intrusive_ptr<c10d::Store>(run.client));
  return run;
}

std::string agree_on_secret(c10d::Store& store, const GlooOptions& options) {
  if (!options.secret.empty()) return options.secret;
  const std::vector<uint8_t> bytes = store.compareSet(kSecret, {}, as_bytes(random_secret()));
  return {bytes.begin(), bytes.end()};
}

void wait_for_all(c10d::Store& store, const GlooOptions& options, const std::function<void()>& check) {
  store.add(kJoined, 1);
  if (options.rank != 0) return;
  const bool all = poll_until(Clock::now() + options.timeout, [&] {
    check();
    return store.add(kJoined, 0) >= options.world_size;
  });
  MPX_CHECK(all, "comm", "not all ranks have connected to each other within ", in_seconds(options.timeout), " s");
}

void meet(const RunStore& run, const GlooOptions& options, const std::string& address) {
  c10d::Store& store = *run.store;
  const auto problems = [&] { return run.server ? run.server->problems() : ""; };
  try {
    check_world_size(store, options, process_location(address));
    check_backend(store, options);
    claim_rank(store, options, process_location(address));
    if (store.add(kArrivedCount, 1) == options.world_size) decide(store, kAllArrived, "");
    std::optional<std::string> decision;
    const bool decided = poll_until(Clock::now() + options.timeout, [&] {
      decision = look_up(store, kDecision);
      return decision && !decision->empty();
    });
    if (!decided) decision = decide_at_timeout(store, options, problems());
    const char kind = decision->front();
    if (kind == kAllArrived) return;
    leave_refused(store, options, kind);
    throw PeerFailure(decision->substr(1) + (kind == kMissing ? problems() : ""));
  } catch (const c10::DistError&) { throw_store_failure(options); }
}

void refuse(c10d::Store& store, const GlooOptions& options, const std::string& cause) {
  decide_refusal(store, options, kRefused, options.rank_name(options.rank) + " could not start: " + cause);
}

void prepare_c10d() {
  // c10d logs every failed attempt and closed connection. Other code already reports these errors once.
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();  // reads the variable
  // The flight recorder of torch 2.11 adds every connection to a map without a lock, so the first operations of two
  // connections in two threads can crash the process. Nothing here reads its record.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
}

void publish_refusal(GlooOptions options, const std::string& cause) {
  options.timeout = kTrialTimeout;
  try {
    const RunStore run = open_store(options);
    refuse(*run.store, options, cause);
  } catch (const std::exception&) {
    // No rank waits for this one.
  }
}

}  // namespace metroplex::comm
