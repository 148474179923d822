#include "comm/backends/run_store.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "comm/backends/run_store_messages.h"
#include "comm/network.h"

namespace metroplex::comm {
namespace {

constexpr const char *kTimeout = "Socket Timeout", *kTooLong = "a message that is too long",
                     *kWrongProtocol = "the store sent another protocol";

std::string as_string(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

void wait_for(int fd, short events, std::chrono::steady_clock::time_point end) {
  pollfd waiting{fd, events, 0};
  int ready = 0;
  do {
    const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    ready = ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(0, remaining.count())));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) C10_THROW_ERROR(DistNetworkError, kTimeout);
}

}  // namespace

std::vector<uint8_t> as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

StoreClient::StoreClient(const Address& address) {
  std::string error;
  fd_ = OwnedFd(connect_by_name(address.host, address.port, address.patience, error));
  MPX_CHECK(fd_.get() >= 0, "comm", "no connection to the rendezvous store of rank 0 at ", address.host, ":",
            address.port, " within ", in_seconds(address.patience), " s: ", error);
  const auto end = Clock::now() + address.answer_limit;
  constexpr std::chrono::milliseconds kFirstPause{20}, kMaxPause{500};
  bool first = true;
  for (auto pause = kFirstPause; fd_.get() < 0 || !prove_secret(address, end, first);
       pause = std::min(2 * pause, kMaxPause)) {
    first = false;
    MPX_CHECK(Clock::now() < end, "comm", "MASTER_PORT = ", address.port, ": ", address.host, ":", address.port,
              " closes connections and has not answered for ", in_seconds(address.answer_limit),
              " s; rank 0 has ended or has no free file descriptors, or another program has the "
              "port");
    std::this_thread::sleep_for(pause);
    link_ = WatchLink();
    fd_ = OwnedFd(connect_by_name(address.host, address.port, pause, error));
  }
  link_.proven = true;
  link_.max_message = kMaxStoreMessage;
}

// Returns false if the server closed the connection without an answer, for example because the hello was late.
bool StoreClient::prove_secret(const Address& address, Clock::time_point end, bool first) {
  const std::string where = base::concat(address.host, ":", address.port);
  prepare_socket(fd_.get(), kSilence);
  try {
    const WatchMessage nonce = receive(end);
    if (nonce.kind != kNonce) C10_THROW_ERROR(DistNetworkError, kWrongProtocol);
    link_.nonce = random_secret();
    WatchLink hello;
    hello.put(kHello, link_.nonce + " " + prove(address.secret, store_claim("client", nonce.text, link_.nonce)));
    send_all(hello.out, end);
    const WatchMessage welcome = receive(end);
    MPX_CHECK(welcome.kind != kRefusal || welcome.text.empty(), "comm", "the rendezvous store of rank 0 at ", where,
              " refused the connection: ", welcome.text);
    if (welcome.kind == kWelcome &&
        equal_secrets(welcome.text, prove(address.secret, store_claim("server", nonce.text, link_.nonce))))
      return true;
    throw base::Error("comm", base::concat("the rendezvous store at ", where,
                                           " has another secret: METROPLEX_SECRET differs between ranks, or another "
                                           "program has the port"));
  } catch (const c10::DistNetworkError& exception) {
    const std::string problem = exception.what_without_backtrace();
    MPX_CHECK(problem != kTimeout || !first, "comm", "MASTER_PORT = ", address.port, ": ", where,
              " accepts connections but has not answered as a rendezvous store for ",
              in_seconds(address.answer_limit),
              " s; rank 0 is stopped or has no free file descriptors, or another program has the port");
    MPX_CHECK(problem != kTooLong && problem != kWrongProtocol, "comm", "MASTER_PORT = ", address.port, ": ", where,
              " does not answer as a rendezvous store; another program has the port: choose another MASTER_PORT");
    return false;
  }
}

void StoreClient::stay() { call(kStay, {}); }

void StoreClient::send_all(const std::string& bytes, Clock::time_point end) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t size = ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (size >= 0) done += static_cast<size_t>(size);
    else if (errno == EAGAIN || errno == EWOULDBLOCK) wait_for(fd_.get(), POLLOUT, end);
    else if (errno != EINTR) C10_THROW_ERROR(DistNetworkError, std::strerror(errno));
  }
}

WatchMessage StoreClient::receive(Clock::time_point end) {
  char buffer[65536];
  while (true) {
    bool refused = false;
    if (auto message = link_.take(refused)) return *std::move(message);
    if (refused) C10_THROW_ERROR(DistNetworkError, kTooLong);
    const ssize_t size = ::recv(fd_.get(), buffer, std::min(sizeof buffer, link_.free_bytes()), 0);
    if (size > 0) link_.in.append(buffer, static_cast<size_t>(size));
    else if (size == 0) C10_THROW_ERROR(DistNetworkError, "the connection was closed");
    else if (errno == EAGAIN || errno == EWOULDBLOCK) wait_for(fd_.get(), POLLIN, end);
    else if (errno != EINTR) C10_THROW_ERROR(DistNetworkError, std::strerror(errno));
  }
}

// Closes the connection if a call fails, because it may be in the middle of a message.
std::vector<std::string> StoreClient::call(char kind, const std::vector<std::string>& fields) {
  const std::lock_guard lock(mutex_);
  if (fd_.get() < 0) C10_THROW_ERROR(DistNetworkError, "the connection was closed");
  const auto end = Clock::now() + kSilence;
  const std::string text = pack(fields);
  MPX_CHECK(text.size() <= kMaxStoreMessage, "comm", "a value of ", text.size(),
            " bytes is too long for the rendezvous store; run.backend = nccl connects more ranks than gloo");
  WatchLink request;
  request.max_message = kMaxStoreMessage;
  request.put(kind, text);
  try {
    send_all(request.out, end);
    const WatchMessage answer = receive(end);
    auto out = unpack(answer.text);
    if (answer.kind != kind || !out) C10_THROW_ERROR(DistNetworkError, kWrongProtocol);
    return *std::move(out);
  } catch (const c10::DistNetworkError&) {
    fd_ = OwnedFd();
    throw;
  }
}

c10::intrusive_ptr<c10d::Store> StoreClient::clone() {
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
}

void StoreClient::set(const std::string& key, const std::vector<uint8_t>& value) {
  call(kSet, {key, as_string(value)});
}

std::vector<uint8_t> StoreClient::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  return as_bytes(call(kCompare, {key, as_string(expected), as_string(desired)}).at(0));
}

std::vector<uint8_t> StoreClient::get(const std::string& key) {
  wait({key});
  const std::vector<std::string> value = call(kGet, {key});
  if (value.empty()) C10_THROW_ERROR(DistStoreError, "the key " + key + " was deleted");
  return as_bytes(value[0]);
}

int64_t StoreClient::add(const std::string& key, int64_t amount) {
  return std::stoll(call(kAdd, {key, std::to_string(amount)}).at(0));
}

bool StoreClient::deleteKey(const std::string& key) { return call(kDelete, {key}).at(0) == "1"; }

bool StoreClient::check(const std::vector<std::string>& keys) { return call(kCheck, keys).at(0) == "1"; }

int64_t StoreClient::getNumKeys() { return std::stoll(call(kCount, {}).at(0)); }

void StoreClient::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const auto end = Clock::now() + timeout;
  for (std::chrono::milliseconds pause{1}; !check(keys); pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
    if (Clock::now() > end)
      C10_THROW_ERROR(DistStoreError,
                      base::concat("no ", keys.empty() ? "key" : keys[0], " in the rendezvous store for ",
                                   static_cast<double>(timeout.count()) / 1000, " s"));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace metroplex::comm
