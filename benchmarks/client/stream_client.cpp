// A streaming HTTP/1.1 client for load tests that leaves the processor to the server: one thread, epoll, no allocation
// per event.
//
//   stream_client host=127.0.0.1 port=8000 path=/v1/completions requests=FILE streams=256 start_for_s=20 limit_s=60
//
// A line of FILE is "DUE_S<tab>JSON body"; bodies are POSTed as they are. streams > 0 is a closed loop: that many at a
// time, bodies in turn, until start_for_s has passed or max_requests were sent; streams=0 is an open loop: each line
// once, DUE_S after the start. Further arguments: ramp_s (closed loop: the streams begin spread over it), stall_s (a
// silent stream is given up). Every request has a connection of its own. After SIGTERM no request begins any more, and
// those in flight end as they would.
//
// What is printed at the end; times in seconds of CLOCK_MONOTONIC, which is Python's time.monotonic:
//
//   R due start first last end status events tokens kind
//
// one per request; kind is "ok" or what went wrong, tokens what the server's `usage` says, or 0;
//
//   B bin_start events
//
// token events in each 10 ms;
//
//   U processor_s start_s
//
// this process's own processor time, and when the load began;
//
//   E body
//
// the first error bodies.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr double kBinS = 0.01;
constexpr double kPauseAfterErrorS = 0.1;  // so that a refusing server is not hammered
constexpr size_t kErrorsKept = 3;
constexpr size_t kErrorBytes = 2000;
constexpr uint64_t kTimer = ~0ull;

volatile std::sig_atomic_t told_to_end = 0;

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Request {
    double due_s;
    std::string bytes;  // head and body
};

struct Record {
    double due_s = 0, start_s = 0, first_s = 0, last_s = 0, end_s = 0;
    int status = 0;
    long events = 0, tokens = 0;
    const char* kind = "ok";
};

enum class Part { kConnecting, kHead, kBody };
enum class Chunk { kSize, kData, kDataEnd, kTrailer };

// One stream at a time; a closed loop uses it again.
struct Stream {
    int fd = -1;
    bool busy = false;
    Part part = Part::kConnecting;
    Chunk chunk = Chunk::kSize;
    bool chunked = false, done = false;
    long left = 0;  // of the chunk, or of a body with Content-Length; -1: until the connection ends
    std::string raw, line, error;
    const std::string* out = nullptr;
    size_t sent = 0;
    double heard_s = 0;
    Record record;
};

class Client {
  public:
    explicit Client(std::map<std::string, std::string> options) : options_(std::move(options)) {
        address_.sin_family = AF_INET;
        address_.sin_port = htons(static_cast<uint16_t>(std::stoi(text("port"))));
        if (inet_pton(AF_INET, text("host").c_str(), &address_.sin_addr) != 1) fail("host: expected an IPv4 address");
        streams_ = static_cast<size_t>(number("streams", 0));
        stall_s_ = number("stall_s", 30);
        load();
    }

    void run() {
        epoll_ = epoll_create1(0);
        timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        watch(timer_, kTimer, EPOLLIN, EPOLL_CTL_ADD);
        start_s_ = now();
        const double deadline_s = start_s_ + number("limit_s", 60);
        if (streams_ > 0) {
            stop_starting_s_ = start_s_ + number("start_for_s", 10);
            most_ = static_cast<size_t>(number("max_requests", 1e6));
            const double ramp_s = number("ramp_s", 0);
            slots_.resize(streams_);
            for (size_t i = 0; i < streams_; ++i)
                waiting_.push({start_s_ + ramp_s * static_cast<double>(i) / static_cast<double>(streams_), i});
        } else {
            stop_starting_s_ = deadline_s;
            most_ = requests_.size();
            slots_.resize(most_);
            for (size_t i = 0; i < most_; ++i) waiting_.push({start_s_ + requests_[i].due_s, i});
        }
        loop(deadline_s);
        report();
    }

  private:
    [[noreturn]] static void fail(const std::string& why) {
        fprintf(stderr, "stream_client: %s\n", why.c_str());
        exit(2);
    }

    std::string text(const std::string& key) const {
        auto found = options_.find(key);
        if (found == options_.end()) fail("missing argument " + key + "=...");
        return found->second;
    }

    double number(const std::string& key, double otherwise) const {
        auto found = options_.find(key);
        return found == options_.end() ? otherwise : std::stod(found->second);
    }

    void load() {
        std::ifstream file(text("requests"));
        std::string head = "POST " + text("path") + " HTTP/1.1\r\nHost: " + text("host") + ":" + text("port") +
                           "\r\nContent-Type: application/json\r\nConnection: close\r\n";
        for (std::string line; std::getline(file, line);) {
            size_t tab = line.find('\t');
            if (tab == std::string::npos) fail("requests: expected lines of DUE_S<tab>BODY");
            std::string body = line.substr(tab + 1);
            requests_.push_back({std::stod(line.substr(0, tab)),
                                 head + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body});
        }
        if (requests_.empty()) fail("requests: no line in " + text("requests"));
    }

    void watch(int fd, uint64_t data, uint32_t events, int operation) const {
        epoll_event event{};
        event.events = events;
        event.data.u64 = data;
        epoll_ctl(epoll_, operation, fd, &event);
    }

    void loop(double deadline_s) {
        epoll_event events[256];
        double checked_s = start_s_;
        for (;;) {
            double t = now();
            while (!waiting_.empty() && waiting_.top().first <= t) {
                auto [due_s, index] = waiting_.top();
                waiting_.pop();
                if (t < stop_starting_s_ && sent_ < most_) start(index, due_s);
                t = now();
            }
            if (told_to_end) stop_starting_s_ = std::min(stop_starting_s_, t);
            if (t >= stop_starting_s_ || sent_ >= most_) waiting_ = {};
            if ((waiting_.empty() && active_ == 0) || t >= deadline_s) break;
            if (t - checked_s > 0.1) {
                checked_s = t;
                for (size_t i = 0; i < slots_.size(); ++i)
                    if (slots_[i].busy && t - slots_[i].heard_s > stall_s_) finish(i, "stall");
            }
            double until_s = std::min(deadline_s, t + 0.1);
            if (!waiting_.empty()) until_s = std::min(until_s, waiting_.top().first);
            arm(until_s);
            int count = epoll_wait(epoll_, events, 256, 200);
            for (int i = 0; i < count; ++i) {
                if (events[i].data.u64 == kTimer) {
                    uint64_t expirations;
                    if (read(timer_, &expirations, sizeof expirations) < 0 && errno != EAGAIN) fail("timer");
                } else {
                    handle(events[i].data.u64, events[i].events);
                }
            }
        }
        for (size_t i = 0; i < slots_.size(); ++i)
            if (slots_[i].busy) finish(i, "cut");
    }

    void arm(double until_s) const {
        itimerspec spec{};
        spec.it_value.tv_sec = static_cast<time_t>(until_s);
        spec.it_value.tv_nsec = static_cast<long>((until_s - static_cast<double>(spec.it_value.tv_sec)) * 1e9) + 1;
        if (spec.it_value.tv_nsec >= 1000000000) spec.it_value.tv_nsec = 999999999;
        timerfd_settime(timer_, TFD_TIMER_ABSTIME, &spec, nullptr);
    }

    void start(size_t index, double due_s) {
        Stream& s = slots_[index];
        const Request& request = requests_[(streams_ > 0 ? sent_ : index) % requests_.size()];
        ++sent_;
        ++active_;
        s.busy = true;
        s.record = Record{};
        s.record.start_s = s.heard_s = now();
        s.record.due_s = streams_ > 0 ? s.record.start_s : due_s;
        s.chunk = Chunk::kSize;
        s.chunked = s.done = false;
        s.left = -1;
        s.raw.clear();
        s.line.clear();
        s.error.clear();
        s.out = &request.bytes;
        s.sent = 0;
        s.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (s.fd < 0) fail("socket: " + std::string(strerror(errno)) + "; raise the limit of open files");
        int one = 1;
        setsockopt(s.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        s.part = Part::kConnecting;
        if (connect(s.fd, reinterpret_cast<sockaddr*>(&address_), sizeof address_) == 0)
            s.part = Part::kHead;
        else if (errno != EINPROGRESS)
            return finish(index, "connect");
        watch(s.fd, index, s.part == Part::kHead ? EPOLLIN : EPOLLOUT, EPOLL_CTL_ADD);
        if (s.part == Part::kHead) send_more(index);
    }

    void send_more(size_t index) {
        Stream& s = slots_[index];
        while (s.sent < s.out->size()) {
            ssize_t n = send(s.fd, s.out->data() + s.sent, s.out->size() - s.sent, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) return watch(s.fd, index, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
            if (n < 0) return finish(index, "write");
            s.sent += static_cast<size_t>(n);
        }
    }

    void handle(size_t index, uint32_t events) {
        Stream& s = slots_[index];
        if (!s.busy) return;  // given up since the kernel told of it
        if (s.part == Part::kConnecting) {
            int error = 0;
            socklen_t size = sizeof error;
            getsockopt(s.fd, SOL_SOCKET, SO_ERROR, &error, &size);
            if (error != 0) return finish(index, "connect");
            s.part = Part::kHead;
            watch(s.fd, index, EPOLLIN, EPOLL_CTL_MOD);
            return send_more(index);
        }
        if (events & EPOLLOUT) {
            watch(s.fd, index, EPOLLIN, EPOLL_CTL_MOD);
            send_more(index);
            if (!s.busy) return;
        }
        if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
        ssize_t n = recv(s.fd, buffer_, sizeof buffer_, 0);
        if (n < 0 && errno == EAGAIN) return;
        const double t = now();
        if (n <= 0) {
            if (s.part == Part::kBody && !s.chunked && s.left < 0) return end_of_body(index);
            return finish(index, s.part == Part::kHead && s.record.events == 0 ? "closed_unanswered" : "closed");
        }
        s.heard_s = t;
        std::string_view data(buffer_, static_cast<size_t>(n));
        if (s.part == Part::kHead) {
            s.raw.append(data);
            size_t end = s.raw.find("\r\n\r\n");
            if (end == std::string::npos) {
                if (s.raw.size() > (1u << 16)) finish(index, "malformed");
                return;
            }
            if (!head(s, std::string_view(s.raw).substr(0, end + 2))) return finish(index, "malformed");
            std::string rest = s.raw.substr(end + 4);
            s.raw.clear();
            s.part = Part::kBody;
            if (rest.empty() && s.left == 0) return end_of_body(index);
            return body(index, rest, t);
        }
        body(index, data, t);
    }

    bool head(Stream& s, std::string_view head) const {
        if (head.size() < 12 || head.substr(0, 7) != "HTTP/1.") return false;
        s.record.status = atoi(std::string(head.substr(9, 3)).c_str());
        std::string lower(head);
        std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
        s.chunked = lower.find("\r\ntransfer-encoding: chunked\r\n") != std::string::npos;
        size_t length = lower.find("\r\ncontent-length:");
        s.left = !s.chunked && length != std::string::npos ? atol(lower.c_str() + length + 17) : -1;
        return s.record.status >= 100;
    }

    // Takes bytes of the body off their chunks (RFC 9112, 7.1), wherever reads may have cut them.
    void body(size_t index, std::string_view data, double t) {
        Stream& s = slots_[index];
        if (!s.chunked) {
            payload(s, data, t);
            if (s.left >= 0 && (s.left -= static_cast<long>(data.size())) <= 0) end_of_body(index);
            return;
        }
        while (!data.empty()) {
            if (s.chunk == Chunk::kData) {
                size_t take = std::min(data.size(), static_cast<size_t>(s.left));
                payload(s, data.substr(0, take), t);
                data.remove_prefix(take);
                s.left -= static_cast<long>(take);
                if (s.left == 0) s.chunk = Chunk::kDataEnd;
                continue;
            }
            size_t newline = data.find('\n');
            s.raw.append(data.substr(0, newline));
            if (newline == std::string_view::npos) return;
            data.remove_prefix(newline + 1);
            if (s.chunk == Chunk::kDataEnd) {
                s.chunk = Chunk::kSize;
            } else if (s.chunk == Chunk::kTrailer) {
                if (s.raw.empty() || s.raw == "\r") return end_of_body(index);
            } else {
                char* end = nullptr;
                s.left = strtol(s.raw.c_str(), &end, 16);
                if (end == s.raw.c_str() || s.left < 0) return finish(index, "malformed");
                s.chunk = s.left == 0 ? Chunk::kTrailer : Chunk::kData;
            }
            s.raw.clear();
        }
    }

    void payload(Stream& s, std::string_view data, double t) {
        if (s.record.status != 200) {
            if (s.error.size() < kErrorBytes) s.error.append(data.substr(0, kErrorBytes - s.error.size()));
            return;
        }
        while (!data.empty()) {
            size_t newline = data.find('\n');
            if (newline == std::string_view::npos) {
                s.line.append(data);
                return;
            }
            if (s.line.empty()) {
                event(s, data.substr(0, newline), t);
            } else {
                s.line.append(data.substr(0, newline));
                event(s, s.line, t);
                s.line.clear();
            }
            data.remove_prefix(newline + 1);
        }
    }

    // One line of the stream (server-sent events); vLLM and OpenAI put one JSON object on one data line.
    void event(Stream& s, std::string_view line, double t) {
        if (line.substr(0, 5) != "data:") return;
        line.remove_prefix(line.size() > 5 && line[5] == ' ' ? 6 : 5);
        if (line.substr(0, 6) == "[DONE]") {
            s.done = true;
            return;
        }
        if (line.substr(0, 9) == "{\"error\":") {
            s.error = line.substr(0, kErrorBytes);
            return;
        }
        size_t usage = line.find("\"completion_tokens\":");
        if (usage != std::string_view::npos) s.record.tokens = atol(std::string(line.substr(usage + 20, 12)).c_str());
        if (line.find("\"choices\":[]") != std::string_view::npos) return;
        if (s.record.events++ == 0) s.record.first_s = t;
        s.record.last_s = t;
        size_t bin = static_cast<size_t>((t - start_s_) / kBinS);
        if (bin >= bins_.size()) bins_.resize(bin + 1024);
        ++bins_[bin];
    }

    void end_of_body(size_t index) {
        Stream& s = slots_[index];
        if (s.record.status != 200) return finish(index, "http");
        if (!s.error.empty()) return finish(index, "error_event");
        finish(index, s.done ? "ok" : "unfinished");
    }

    void finish(size_t index, const char* kind) {
        Stream& s = slots_[index];
        const bool ok = strcmp(kind, "ok") == 0;
        s.busy = false;
        --active_;
        close(s.fd);
        const double t = now();
        s.record.end_s = t;
        s.record.kind = kind;
        records_.push_back(s.record);
        if (!ok && !s.error.empty() && errors_.size() < kErrorsKept) errors_.push_back(s.error);
        if (streams_ > 0) waiting_.push({ok ? t : t + kPauseAfterErrorS, index});
    }

    void report() const {
        for (const Record& r : records_) {
            std::string kind = r.kind;
            if (kind == "http") kind += "_" + std::to_string(r.status);
            printf("R %.6f %.6f %.6f %.6f %.6f %d %ld %ld %s\n", r.due_s, r.start_s, r.first_s, r.last_s, r.end_s,
                   r.status, r.events, r.tokens, kind.c_str());
        }
        for (size_t i = 0; i < bins_.size(); ++i)
            if (bins_[i]) printf("B %.6f %u\n", start_s_ + static_cast<double>(i) * kBinS, bins_[i]);
        for (std::string error : errors_) {
            std::replace(error.begin(), error.end(), '\n', ' ');
            printf("E %s\n", error.c_str());
        }
        rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        auto seconds = [](const timeval& t) {
            return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
        };
        printf("U %.3f %.6f\n", seconds(usage.ru_utime) + seconds(usage.ru_stime), start_s_);
    }

    using Due = std::pair<double, size_t>;
    std::map<std::string, std::string> options_;
    std::vector<Request> requests_;
    std::vector<Stream> slots_;
    std::vector<Record> records_;
    std::vector<uint32_t> bins_;
    std::vector<std::string> errors_;
    std::priority_queue<Due, std::vector<Due>, std::greater<Due>> waiting_;
    sockaddr_in address_{};
    size_t streams_ = 0, sent_ = 0, active_ = 0, most_ = 0;
    double start_s_ = 0, stop_starting_s_ = 0, stall_s_ = 0;
    int epoll_ = -1, timer_ = -1;
    char buffer_[1 << 16];
};

}  // namespace

int main(int count, char** arguments) {
    std::map<std::string, std::string> options;
    for (int i = 1; i < count; ++i) {
        std::string argument = arguments[i];
        size_t equals = argument.find('=');
        if (equals == std::string::npos) {
            fprintf(stderr, "stream_client: expected key=value, got %s\n", arguments[i]);
            return 2;
        }
        options[argument.substr(0, equals)] = argument.substr(equals + 1);
    }
    std::signal(SIGTERM, [](int) { told_to_end = 1; });
    static Client* client = new Client(std::move(options));  // too large for the stack
    client->run();
    return 0;
}
