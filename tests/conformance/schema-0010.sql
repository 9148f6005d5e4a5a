-- The schema of the first release in SQLite. Never edit it, even if the tables change.
CREATE TABLE runs (
    id VARCHAR(32) NOT NULL,
    name VARCHAR(63) NOT NULL,
    state VARCHAR(16) NOT NULL,
    paused BOOLEAN NOT NULL,
    round INTEGER NOT NULL,
    settings JSON NOT NULL,
    model JSON NOT NULL,
    tokenizer VARCHAR(71),
    sampling_secret VARCHAR(64),
    verifier_version TEXT NOT NULL,
    waiting_for TEXT,
    failure TEXT,
    rollbacks INTEGER NOT NULL,
    created_at DATETIME NOT NULL,
    epoch INTEGER NOT NULL,
    CONSTRAINT pk_runs PRIMARY KEY (id)
);
CREATE INDEX ix_runs_name ON runs (name);
CREATE INDEX ix_runs_state ON runs (state);
CREATE UNIQUE INDEX uq_runs_unfinished_name ON runs (name) WHERE state NOT IN ('finished', 'cancelled');
CREATE TABLE viewers (
    name VARCHAR(63) NOT NULL,
    token_sha256 VARCHAR(64) NOT NULL,
    created_at DATETIME NOT NULL,
    CONSTRAINT pk_viewers PRIMARY KEY (name),
    CONSTRAINT uq_viewers_token_sha256 UNIQUE (token_sha256)
);
CREATE TABLE leases (
    run_id VARCHAR(32) NOT NULL,
    holder VARCHAR(255),
    term INTEGER NOT NULL,
    beats BIGINT NOT NULL,
    CONSTRAINT pk_leases PRIMARY KEY (run_id),
    CONSTRAINT fk_leases_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE problem_sets (
    run_id VARCHAR(32) NOT NULL,
    kind VARCHAR(16) NOT NULL,
    digest VARCHAR(71) NOT NULL,
    problems INTEGER NOT NULL,
    CONSTRAINT pk_problem_sets PRIMARY KEY (run_id, kind),
    CONSTRAINT fk_problem_sets_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE members (
    id INTEGER NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    name VARCHAR(63) NOT NULL,
    role VARCHAR(16) NOT NULL,
    token_sha256 VARCHAR(64) NOT NULL,
    active BOOLEAN NOT NULL,
    suspended BOOLEAN NOT NULL,
    accepted BOOLEAN NOT NULL,
    away VARCHAR(40),
    away_detail TEXT,
    joining BOOLEAN NOT NULL,
    unverified BOOLEAN NOT NULL,
    certificate VARCHAR(64),
    last_seen DATETIME,
    progress JSON,
    CONSTRAINT pk_members PRIMARY KEY (id),
    CONSTRAINT uq_members_run_id_name UNIQUE (run_id, name),
    CONSTRAINT fk_members_run_id FOREIGN KEY(run_id) REFERENCES runs (id),
    CONSTRAINT uq_members_token_sha256 UNIQUE (token_sha256)
);
CREATE TABLE invites (
    code_sha256 VARCHAR(64) NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    name VARCHAR(63) NOT NULL,
    role VARCHAR(16) NOT NULL,
    expires_at DATETIME NOT NULL,
    used_at DATETIME,
    reissue BOOLEAN NOT NULL,
    CONSTRAINT pk_invites PRIMARY KEY (code_sha256),
    CONSTRAINT fk_invites_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE blobs (
    run_id VARCHAR(32) NOT NULL,
    digest VARCHAR(71) NOT NULL,
    member VARCHAR(63) NOT NULL,
    size BIGINT NOT NULL,
    CONSTRAINT pk_blobs PRIMARY KEY (run_id, digest, member),
    CONSTRAINT fk_blobs_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE uploads (
    id VARCHAR(32) NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    member VARCHAR(63) NOT NULL,
    digest VARCHAR(71) NOT NULL,
    size BIGINT NOT NULL,
    expires_at DATETIME NOT NULL,
    CONSTRAINT pk_uploads PRIMARY KEY (id),
    CONSTRAINT fk_uploads_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_uploads_run_id ON uploads (run_id);
CREATE INDEX ix_uploads_expires_at ON uploads (expires_at);
CREATE TABLE rounds (
    run_id VARCHAR(32) NOT NULL,
    round INTEGER NOT NULL,
    adapter VARCHAR(71),
    residual VARCHAR(71),
    server_state VARCHAR(71),
    means JSON,
    drift JSON,
    evaluation JSON,
    CONSTRAINT pk_rounds PRIMARY KEY (run_id, round),
    CONSTRAINT fk_rounds_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE updates (
    run_id VARCHAR(32) NOT NULL,
    round INTEGER NOT NULL,
    member VARCHAR(63) NOT NULL,
    digest VARCHAR(71) NOT NULL,
    stored VARCHAR(71),
    metrics JSON NOT NULL,
    late BOOLEAN NOT NULL,
    received_at DATETIME NOT NULL,
    CONSTRAINT pk_updates PRIMARY KEY (run_id, round, member),
    CONSTRAINT fk_updates_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_updates_kept ON updates (run_id, round) WHERE stored IS NOT NULL;
CREATE TABLE swaps (
    run_id VARCHAR(32) NOT NULL,
    round INTEGER NOT NULL,
    swap INTEGER NOT NULL,
    first_at DATETIME NOT NULL,
    closed BOOLEAN NOT NULL,
    summary JSON,
    CONSTRAINT pk_swaps PRIMARY KEY (run_id, round, swap),
    CONSTRAINT fk_swaps_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE prompts (
    run_id VARCHAR(32) NOT NULL,
    round INTEGER NOT NULL,
    swap INTEGER NOT NULL,
    prompts JSON NOT NULL,
    "right" JSON,
    responses INTEGER NOT NULL,
    CONSTRAINT pk_prompts PRIMARY KEY (run_id, round, swap),
    CONSTRAINT fk_prompts_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE submissions (
    run_id VARCHAR(32) NOT NULL,
    round INTEGER NOT NULL,
    swap INTEGER NOT NULL,
    member VARCHAR(63) NOT NULL,
    digest VARCHAR(71) NOT NULL,
    stored VARCHAR(71),
    correct JSON,
    donatable JSON,
    late BOOLEAN NOT NULL,
    received_at DATETIME NOT NULL,
    CONSTRAINT pk_submissions PRIMARY KEY (run_id, round, swap, member),
    CONSTRAINT fk_submissions_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_submissions_kept ON submissions (run_id, round) WHERE stored IS NOT NULL;
CREATE TABLE doubts (
    run_id VARCHAR(32) NOT NULL,
    donor VARCHAR(63) NOT NULL,
    receiver VARCHAR(63) NOT NULL,
    responses BIGINT NOT NULL,
    other_noise DOUBLE NOT NULL,
    other_policy DOUBLE NOT NULL,
    verdicts INTEGER NOT NULL,
    doubts INTEGER NOT NULL,
    doubted BOOLEAN NOT NULL,
    CONSTRAINT pk_doubts PRIMARY KEY (run_id, donor, receiver),
    CONSTRAINT fk_doubts_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE traffic (
    run_id VARCHAR(32) NOT NULL,
    round INTEGER NOT NULL,
    member VARCHAR(63) NOT NULL,
    kind VARCHAR(16) NOT NULL,
    bytes BIGINT NOT NULL,
    CONSTRAINT pk_traffic PRIMARY KEY (run_id, round, member, kind),
    CONSTRAINT fk_traffic_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE events (
    id INTEGER NOT NULL,
    run_id VARCHAR(32) NOT NULL,
    at DATETIME NOT NULL,
    kind VARCHAR(32) NOT NULL,
    details JSON NOT NULL,
    CONSTRAINT pk_events PRIMARY KEY (id),
    CONSTRAINT fk_events_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_events_run_id ON events (run_id);
CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events WHEN (SELECT state FROM runs WHERE id = OLD.run_id) IS NOT 'deleted' BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES ('0010');
